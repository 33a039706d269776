/* Triton backend that computes the benchmark's MLP: relu(x @ hidden) @ out, with x of shape (n, 64).
 *
 * The file weights.bin of the model has both weight matrices as float32, row by row. Only the parts of Triton's C API
 * that the backend calls are declared here. Their objects are opaque.
 */

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { FEATURES = 64, HIDDEN = 128, CLASSES = 10, MAX_ROWS = 32, MAX_PATH = 4096 };

/* Values of Triton's enumerations. */
enum { ERROR_INTERNAL = 1, ERROR_INVALID_ARG = 3, TYPE_FP32 = 11, MEMORY_CPU = 0, COMPLETE_FINAL = 1, RELEASE_ALL = 1 };

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
Error *TRITONBACKEND_RequestInputByIndex(Request *request, uint32_t index, Input **input);
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

/* Written before the model is ready, only read afterwards. */
static struct {
    float hidden[FEATURES][HIDDEN], out[HIDDEN][CLASSES];
} weights;

static void predict(const float *x, float *y) {
    float hidden[HIDDEN] = {0};
    for (int feature = 0; feature < FEATURES; feature++)
        for (int unit = 0; unit < HIDDEN; unit++)
            hidden[unit] += x[feature] * weights.hidden[feature][unit];
    float sums[CLASSES] = {0};
    for (int unit = 0; unit < HIDDEN; unit++)
        for (int class = 0; class < CLASSES; class++)
            sums[class] += (hidden[unit] > 0 ? hidden[unit] : 0) * weights.out[unit][class];
    memcpy(y, sums, sizeof sums);
}

/* Copy the rows of a request to `x`, for at most MAX_ROWS rows. The server has checked type and shape. */
static Error *read_rows(Request *request, float *x, int64_t *rows) {
    Input *input;
    const int64_t *shape;
    uint32_t buffers;
    uint64_t size_bytes, copied = 0;
    Error *error = TRITONBACKEND_RequestInputByIndex(request, 0, &input);
    if (!error)
        error = TRITONBACKEND_InputProperties(input, NULL, NULL, &shape, NULL, &size_bytes, &buffers);
    if (error)
        return error;
    *rows = shape[0];
    if (*rows < 0 || *rows > MAX_ROWS || size_bytes != *rows * FEATURES * sizeof(float))
        return TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, "The data of the input does not have the size of its shape.");
    for (uint32_t index = 0; index < buffers; index++) {
        const void *buffer;
        uint64_t part_bytes;
        int memory_type = MEMORY_CPU;
        int64_t memory_id = 0;
        error = TRITONBACKEND_InputBuffer(input, index, &buffer, &part_bytes, &memory_type, &memory_id);
        if (error)
            return error;
        memcpy((char *)x + copied, buffer, part_bytes);
        copied += part_bytes;
    }
    return NULL;
}

static Error *answer(Request *request, Response *response) {
    float x[MAX_ROWS * FEATURES];
    int64_t rows, memory_id = 0;
    int memory_type = MEMORY_CPU;
    Output *output;
    void *y;
    Error *error = read_rows(request, x, &rows);
    if (!error)
        error = TRITONBACKEND_ResponseOutput(response, &output, "y", TYPE_FP32, (int64_t[]){rows, CLASSES}, 2);
    if (!error)
        error = TRITONBACKEND_OutputBuffer(output, &y, rows * CLASSES * sizeof(float), &memory_type, &memory_id);
    for (int64_t row = 0; !error && row < rows; row++)
        predict(x + row * FEATURES, (float *)y + row * CLASSES);
    return error;
}

/* Load the weights. Called once, before the first request. */
Error *TRITONBACKEND_ModelInitialize(Model *model) {
    const char *location;
    int artifact_type;
    char path[MAX_PATH];
    Error *error = TRITONBACKEND_ModelRepository(model, &artifact_type, &location);
    if (error)
        return error;
    snprintf(path, sizeof path, "%s/1/weights.bin", location);
    FILE *file = fopen(path, "rb");
    int complete = file && fread(&weights, sizeof weights, 1, file) == 1 && fgetc(file) == EOF;
    if (file)
        fclose(file);
    return complete ? NULL : TRITONSERVER_ErrorNew(ERROR_INTERNAL, "weights.bin is missing or has a wrong size.");
}

/* Answer a batch. The batcher calls this function for one batch at a time, because the model has one instance. */
Error *TRITONBACKEND_ModelInstanceExecute(ModelInstance *instance, Request **requests, const uint32_t count) {
    (void)instance;
    for (uint32_t index = 0; index < count; index++) {
        Response *response;
        Error *error = TRITONBACKEND_ResponseNew(&response, requests[index]);
        if (!error) {
            error = answer(requests[index], response);
            Error *unsent = TRITONBACKEND_ResponseSend(response, COMPLETE_FINAL, error);
            if (unsent)
                TRITONSERVER_ErrorDelete(unsent);
        }
        if (error)
            TRITONSERVER_ErrorDelete(error);
        error = TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL);
        if (error)
            TRITONSERVER_ErrorDelete(error);
    }
    return NULL;
}
