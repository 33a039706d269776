"""Tests of `tpuserve protos`."""

from pathlib import Path

from click.testing import CliRunner

from tpuserve_client.cli import protos


def test_files_are_written_into_a_new_directory(tmp_path: Path) -> None:
    done = CliRunner().invoke(protos, [str(tmp_path / "new" / "protos")])
    assert done.exit_code == 0, done.output
    assert "service GRPCInferenceService" in (tmp_path / "new/protos/grpc_predict_v2.proto").read_text()
    service = tmp_path / "new/protos/tensorflow_serving/apis/prediction_service.proto"
    assert "service PredictionService" in service.read_text()
    again = CliRunner().invoke(protos, [str(tmp_path / "new" / "protos")])
    assert again.exit_code == 0, again.output


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(protos, [str(tmp_path / "file" / "protos")])
    assert done.exit_code == 1
    assert done.output.startswith("Error: Cannot write the files to ")
    assert done.output.count("\n") == 1
