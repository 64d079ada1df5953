"""Task that computes a file's answers per image, if they were not kept when the file was made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from senseapp.core.disk import storage_errors
from senseapp.core.errors import InvalidSpec, NotFound
from senseapp.records.file_answers import FileAnswers
from senseapp.server.tasks import FinishedRunTask, TaskContext, open_evaluator
from senseapp.store.run_folder import key_in


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswersTask(FinishedRunTask[FileAnswers]):
    """Answers of one ONNX file of a run to each proof image.

    Attributes:
        file: its name in the run's folder.
    """

    kind: ClassVar[type] = FileAnswers

    file: str

    @property
    def key(self) -> str:
        """Key of the record: that in the file's name."""
        return key_in(self.file)

    def find_out(self, context: TaskContext) -> FileAnswers:
        """Run the file and the original network in onnxruntime.

        Raises:
            NotFound: the run has no such file for a runtime on this server.
            InvalidSpec: the model's outputs are not answers.
        """
        from senseapp.prove.file_answers import file_answers
        from senseapp.runtimes.onnxruntime.runtime import RuntimeModel  # torch loads here

        known = {each.file for each in context.folder.candidates() if each.runs}
        path = context.folder.path / self.file
        if self.file not in known or not path.is_file():
            raise NotFound("This file is not on this server: only its figures are. Make it again.")
        evaluator = open_evaluator(context)
        task, proof = evaluator.dense.task, evaluator.images.proof
        images = evaluator.dense.arranged(proof, 0, len(proof))
        with storage_errors(self.file):
            content = path.read_bytes()
        evaluator.progress("Running the original and the file on the held-out images")
        before, after = (
            task.output(RuntimeModel(each).outputs(images)) for each in (evaluator.original_network, content)
        )
        found = file_answers(before, after, proof, task=task, names=evaluator.class_names)
        if found is None:
            raise InvalidSpec("The outputs of this model name no answers that could differ.")
        return found
