/* Triton backend that runs a SavedModel with TensorFlow's C library: one session call for each batch of requests.
 *
 * The file tensors.txt of the model's version has a line for each tensor: `input` or `output`, its name, its operation
 * in the graph, its dtype in TensorFlow's and Triton's numbers, and the bytes of a row. Only outputs with one value a
 * row are supported. The variable TENSORFLOW_LIBRARY has the path of libtensorflow_cc. Only the parts of both C APIs
 * that the backend calls are declared here. Their objects are opaque.
 */

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TENSORS = 64, MAX_NAME = 128, MAX_REQUESTS = 1024, MAX_DIMENSIONS = 8, MAX_PATH = 4096 };

/* Values of Triton's enumerations. */
enum { ERROR_INTERNAL = 1, ERROR_INVALID_ARG = 3, MEMORY_CPU = 0, COMPLETE_FINAL = 1, RELEASE_ALL = 1 };

typedef struct TRITONSERVER_Error Error;
typedef struct TRITONBACKEND_Model Model;
typedef struct TRITONBACKEND_ModelInstance ModelInstance;
typedef struct TRITONBACKEND_Request Request;
typedef struct TRITONBACKEND_Response Response;
typedef struct TRITONBACKEND_Input Input;
typedef struct TRITONBACKEND_Output Output;

Error *TRITONSERVER_ErrorNew(int code, const char *message);
void TRITONSERVER_ErrorDelete(Error *error);
Error *TRITONBACKEND_ModelRepository(Model *model, int *artifact_type, const char **location);
Error *TRITONBACKEND_RequestInput(Request *request, const char *name, Input **input);
Error *TRITONBACKEND_RequestRelease(Request *request, uint32_t flags);
Error *TRITONBACKEND_InputProperties(Input *input, const char **name, int *datatype, const int64_t **shape,
                                     uint32_t *dimensions, uint64_t *size_bytes, uint32_t *buffers);
Error *TRITONBACKEND_InputBuffer(Input *input, uint32_t index, const void **buffer, uint64_t *size_bytes,
                                 int *memory_type, int64_t *memory_id);
Error *TRITONBACKEND_ResponseNew(Response **response, Request *request);
Error *TRITONBACKEND_ResponseOutput(Response *response, Output **output, const char *name, int datatype,
                                    const int64_t *shape, uint32_t dimensions);
Error *TRITONBACKEND_OutputBuffer(Output *output, void **buffer, uint64_t size_bytes, int *memory_type,
                                  int64_t *memory_id);
Error *TRITONBACKEND_ResponseSend(Response *response, uint32_t flags, Error *error);

typedef struct TF_Status TF_Status;
typedef struct TF_Graph TF_Graph;
typedef struct TF_Session TF_Session;
typedef struct TF_SessionOptions TF_SessionOptions;
typedef struct TF_Operation TF_Operation;
typedef struct TF_Tensor TF_Tensor;
typedef struct {
    TF_Operation *operation;
    int index;
} TF_Output;

/* The library is opened apart from Triton's own libraries: both contain protobuf. */
#define TENSORFLOW(FUNCTION)                                                                                           \
    FUNCTION(TF_Status *, TF_NewStatus, (void))                                                                        \
    FUNCTION(void, TF_DeleteStatus, (TF_Status *))                                                                     \
    FUNCTION(int, TF_GetCode, (const TF_Status *))                                                                     \
    FUNCTION(const char *, TF_Message, (const TF_Status *))                                                            \
    FUNCTION(TF_Graph *, TF_NewGraph, (void))                                                                          \
    FUNCTION(TF_SessionOptions *, TF_NewSessionOptions, (void))                                                        \
    FUNCTION(TF_Session *, TF_LoadSessionFromSavedModel,                                                               \
             (const TF_SessionOptions *, const void *, const char *, const char *const *, int, TF_Graph *, void *,     \
              TF_Status *))                                                                                            \
    FUNCTION(TF_Operation *, TF_GraphOperationByName, (TF_Graph *, const char *))                                      \
    FUNCTION(TF_Tensor *, TF_AllocateTensor, (int, const int64_t *, int, size_t))                                      \
    FUNCTION(void *, TF_TensorData, (const TF_Tensor *))                                                               \
    FUNCTION(size_t, TF_TensorByteSize, (const TF_Tensor *))                                                           \
    FUNCTION(void, TF_DeleteTensor, (TF_Tensor *))                                                                     \
    FUNCTION(void, TF_SessionRun,                                                                                      \
             (TF_Session *, const void *, const TF_Output *, TF_Tensor *const *, int, const TF_Output *, TF_Tensor **, \
              int, const TF_Operation *const *, int, void *, TF_Status *))
#define DECLARE(result, name, arguments) static result(*name) arguments;
TENSORFLOW(DECLARE)

struct tensor {
    char name[MAX_NAME];
    TF_Output place;
    int tensorflow_type, triton_type;
    size_t row_bytes;
};

/* Written before the model is ready, only read afterwards. */
static struct {
    TF_Session *session;
    struct tensor inputs[MAX_TENSORS], output;
    int count;
} model;

static Error *internal(const char *message) {
    return TRITONSERVER_ErrorNew(ERROR_INTERNAL, message);
}

/* Return the error of a status, which the caller owns, or NULL. */
static Error *failure(const TF_Status *status) {
    return TF_GetCode(status) ? internal(TF_Message(status)) : NULL;
}

static Error *open_library(void) {
    const char *path = getenv("TENSORFLOW_LIBRARY");
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND) : NULL;
    if (!library)
        return internal(path ? dlerror() : "TENSORFLOW_LIBRARY is not set.");
#define FIND(result, name, arguments)                                                                                  \
    if (!(*(void **)&name = dlsym(library, #name)))                                                                    \
        return internal("TensorFlow's library has no function " #name ".");
    TENSORFLOW(FIND)
    return NULL;
}

static Error *load_session(const char *version, TF_Graph *graph) {
    TF_Status *status = TF_NewStatus();
    const char *tags[] = {"serve"};
    model.session =
        TF_LoadSessionFromSavedModel(TF_NewSessionOptions(), NULL, version, tags, 1, graph, NULL, status);
    Error *error = failure(status);
    TF_DeleteStatus(status);
    return error;
}

static Error *read_tensors(const char *path, TF_Graph *graph) {
    FILE *file = fopen(path, "r");
    if (!file)
        return internal("tensors.txt is missing.");
    char kind[MAX_NAME], operation[MAX_NAME];
    struct tensor read;
    while (fscanf(file, "%127s %127s %127s %d %d %zu", kind, read.name, operation, &read.tensorflow_type,
                  &read.triton_type, &read.row_bytes) == 6) {
        read.place = (TF_Output){TF_GraphOperationByName(graph, operation), 0};
        if (!read.place.operation)
            break;
        if (strcmp(kind, "input"))
            model.output = read;
        else if (model.count < MAX_TENSORS)
            model.inputs[model.count++] = read;
    }
    int complete = feof(file);
    fclose(file);
    return complete ? NULL : internal("tensors.txt names an unknown operation.");
}

/* Load the SavedModel. Called once, before the first request. */
Error *TRITONBACKEND_ModelInitialize(Model *loaded) {
    const char *location;
    int artifact_type;
    char path[MAX_PATH];
    Error *error = TRITONBACKEND_ModelRepository(loaded, &artifact_type, &location);
    if (!error)
        error = open_library();
    if (error)
        return error;
    TF_Graph *graph = TF_NewGraph();
    snprintf(path, sizeof path, "%s/1", location);
    error = load_session(path, graph);
    if (error)
        return error;
    snprintf(path, sizeof path, "%s/1/tensors.txt", location);
    return read_tensors(path, graph);
}

/* Return the rows of a request, from the shape of its first input. */
static Error *count_rows(Request *request, int64_t *rows) {
    Input *input;
    const int64_t *shape;
    Error *error = TRITONBACKEND_RequestInput(request, model.inputs[0].name, &input);
    if (!error)
        error = TRITONBACKEND_InputProperties(input, NULL, NULL, &shape, NULL, NULL, NULL);
    if (!error)
        *rows = shape[0];
    return error;
}

/* Copy one input of a request to `target`, which has room for `rows` rows. */
static Error *copy_input(Request *request, const struct tensor *tensor, char *target, int64_t rows) {
    Input *input;
    uint32_t buffers;
    uint64_t size_bytes;
    Error *error = TRITONBACKEND_RequestInput(request, tensor->name, &input);
    if (!error)
        error = TRITONBACKEND_InputProperties(input, NULL, NULL, NULL, NULL, &size_bytes, &buffers);
    if (error)
        return error;
    if (size_bytes != rows * tensor->row_bytes)
        return TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, "The inputs have different numbers of rows.");
    for (uint32_t index = 0; index < buffers; index++) {
        const void *buffer;
        uint64_t part_bytes;
        int memory_type = MEMORY_CPU;
        int64_t memory_id = 0;
        error = TRITONBACKEND_InputBuffer(input, index, &buffer, &part_bytes, &memory_type, &memory_id);
        if (error)
            return error;
        memcpy(target, buffer, part_bytes);
        target += part_bytes;
    }
    return NULL;
}

/* Join an input of all requests. */
static Error *join(Request **requests, uint32_t count, const int64_t *rows, const struct tensor *tensor,
                   TF_Tensor *joined) {
    char *target = TF_TensorData(joined);
    for (uint32_t index = 0; index < count; index++) {
        Error *error = copy_input(requests[index], tensor, target, rows[index]);
        if (error)
            return error;
        target += rows[index] * tensor->row_bytes;
    }
    return NULL;
}

/* Run all requests in one call. `scores` gets the output, which the caller deletes. */
static Error *run(Request **requests, uint32_t count, const int64_t *rows, TF_Tensor **scores) {
    TF_Output places[MAX_TENSORS];
    TF_Tensor *values[MAX_TENSORS];
    int64_t all = 0;
    Error *error = NULL;
    for (uint32_t index = 0; index < count; index++)
        all += rows[index];
    for (int number = 0; number < model.count; number++) {
        const struct tensor *tensor = &model.inputs[number];
        /* All values have four bytes. */
        int64_t shape[] = {all, tensor->row_bytes / 4};
        places[number] = tensor->place;
        values[number] = TF_AllocateTensor(tensor->tensorflow_type, shape, 2, all * tensor->row_bytes);
        if (!error)
            error = join(requests, count, rows, tensor, values[number]);
    }
    if (!error) {
        TF_Status *status = TF_NewStatus();
        TF_SessionRun(model.session, NULL, places, values, model.count, &model.output.place, scores, 1, NULL, 0, NULL,
                      status);
        error = failure(status);
        TF_DeleteStatus(status);
    }
    for (int number = 0; number < model.count; number++)
        TF_DeleteTensor(values[number]);
    return error;
}

/* Write a request's part of the output, from `source`. */
static Error *answer(Response *response, const char *source, int64_t rows) {
    Output *output;
    void *buffer;
    int64_t shape[] = {rows, 1}, memory_id = 0;
    int memory_type = MEMORY_CPU;
    size_t size_bytes = rows * model.output.row_bytes;
    Error *error =
        TRITONBACKEND_ResponseOutput(response, &output, model.output.name, model.output.triton_type, shape, 2);
    if (!error)
        error = TRITONBACKEND_OutputBuffer(output, &buffer, size_bytes, &memory_type, &memory_id);
    if (!error)
        memcpy(buffer, source, size_bytes);
    return error;
}

/* Answer a batch. The batcher calls this function for one batch at a time, because the model has one instance.
 * Without a response for a failed batch, Triton logs the error and closes the request.
 */
Error *TRITONBACKEND_ModelInstanceExecute(ModelInstance *instance, Request **requests, const uint32_t count) {
    (void)instance;
    int64_t rows[MAX_REQUESTS];
    TF_Tensor *scores = NULL;
    Error *error = count > MAX_REQUESTS ? internal("The batch has too many requests.") : NULL;
    for (uint32_t index = 0; !error && index < count; index++)
        error = count_rows(requests[index], &rows[index]);
    if (!error)
        error = run(requests, count, rows, &scores);
    if (error)
        return error; /* The requests stay Triton's. */
    const char *source = TF_TensorData(scores);
    for (uint32_t index = 0; index < count; index++) {
        Response *response;
        Error *failed = TRITONBACKEND_ResponseNew(&response, requests[index]);
        if (!failed) {
            failed = answer(response, source, rows[index]);
            Error *unsent = TRITONBACKEND_ResponseSend(response, COMPLETE_FINAL, failed);
            if (unsent)
                TRITONSERVER_ErrorDelete(unsent);
        }
        if (failed)
            TRITONSERVER_ErrorDelete(failed);
        source += rows[index] * model.output.row_bytes;
        failed = TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL);
        if (failed)
            TRITONSERVER_ErrorDelete(failed);
    }
    TF_DeleteTensor(scores);
    return NULL;
}
