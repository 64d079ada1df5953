"""The task that runs a file for its answers, image by image, where they were not kept when it was made."""

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
    """What one file of a run answers to each proof image.

    Attributes:
        file: its name in the run's folder.
    """

    kind: ClassVar[type] = FileAnswers

    file: str

    @property
    def key(self) -> str:
        """Names the record: the key in the name of the file."""
        return key_in(self.file)

    def find_out(self, context: TaskContext) -> FileAnswers:
        """Run the file and the original network in its runtime.

        Raises:
            NotFound: the run has no such file for a runtime on this server.
            InvalidSpec: the outputs of the model are no answers.
        """
        from senseapp.prove.answers import file_answers  # torch loads here
        from senseapp.prove.judge import Judge, JudgingImages
        from senseapp.runtimes.base import runtime_named

        candidate = next((each for each in context.folder.candidates() if each.runs and each.file == self.file), None)
        if candidate is None:
            raise NotFound("This file is not on this server: only its figures are. Make it again.")
        with storage_errors(self.file):
            content = context.folder.candidate_file(candidate).read_bytes()
        evaluator, runtime = open_evaluator(context), runtime_named(candidate.runtime.name)
        proof, original = evaluator.images.proof, runtime.open(evaluator.original_file(runtime))
        evaluator.progress("Running the original and the file on the held-out images")
        images, outputs = JudgingImages.of_set(proof, evaluator.dense), evaluator.profile.num_classes
        judge = Judge(evaluator.task, images, original, num_outputs=outputs)
        before, after = judge.original.outputs, judge.judged(runtime.open(content)).outputs
        found = file_answers(before, after, proof, task=evaluator.task, names=evaluator.class_names)
        if found is None:
            raise InvalidSpec("The outputs of this model name no answers that could differ.")
        return found
