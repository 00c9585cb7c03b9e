"""The page of results."""

import pytest

from gpflow_cool.studies import StudyError, results


def test_results_page_without_results(tmp_path):
    with pytest.raises(StudyError, match="holds none of synthetic.csv"):
        results.write(tmp_path, tmp_path / "page.md")
