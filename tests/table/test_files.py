"""Tables read from real files, and each mistake in them told in one line that names the place."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from gpflow_cool.table.files import TableError, read_table
from gpflow_cool.table.marks import TextStyle
from gpflow_cool.table.writing import check_output, write_table

VALUES = np.array([[1.0, -2.5, 3e-7], [4.0, 5.0, 6.25]])
NAMES = ["a", "b c", "ü"]


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


def refused(path, message, *names, **options):
    """The one line with which a file is refused."""
    with pytest.raises(TableError, match=message) as caught:
        read_table(path).numbers(names, **options)
    assert "\n" not in str(caught.value)


TEXTS = {
    "commas": "a,b c,ü\n1,-2.5,3e-7\n4,5,6.25\n",
    "semicolons, no last line end": "a;b c;ü\n1;-2.5;3e-7\n4;5;6.25",
    "tabs": "a\tb c\tü\n1\t-2.5\t3e-7\n4\t5\t6.25\n",
    "windows": "\ufeffa,b c,ü\r\n1,-2.5,3e-7\r\n4,5,6.25\r\n",
    "blank lines and spaces": "\n a , b c ,ü\n\n 1, -2.5 ,3e-7\n\n4,5,6.25\n\n",
    "quotes": '"a","b c","ü"\n"1","-2.5","3e-7"\n"4","5","6.25"\n',
}


@pytest.mark.parametrize("name", TEXTS)
def test_csv_in_its_varieties(tmp_path, name):
    table = read_table(write(tmp_path / "data.csv", TEXTS[name]))
    assert table.names == NAMES and table.num_rows == 2
    assert_array_equal(table.numbers(NAMES), VALUES)
    assert_array_equal(table.numbers(["ü", "a"]), VALUES[:, [2, 0]])


def test_parquet(tmp_path):
    pd.DataFrame(VALUES, columns=NAMES).assign(n=[1, 2], word="x").to_parquet(
        tmp_path / "data.parquet"
    )
    table = read_table(tmp_path / "data.parquet")
    assert_array_equal(table.numbers(NAMES), VALUES)
    assert_array_equal(table.numbers(["n"]), [[1], [2]])
    refused(
        tmp_path / "data.parquet", "data.parquet, row 1, column 'word': 'x' is not a number", "word"
    )


def test_arff(tmp_path):
    text = "@relation r\n@attribute a numeric\n@attribute b real\n@data\n1,2\n?,4\n"
    table = read_table(write(tmp_path / "data.arff", text))
    assert_array_equal(table.numbers(["b"]), [[2.0], [4.0]])
    assert_array_equal(table.numbers(["a"], allow_missing=True), [[1.0], [np.nan]])
    line = r"data.arff, row 2 \(line 6\), column 'a': the cell is empty"
    refused(tmp_path / "data.arff", line, "a")
    write(tmp_path / "bad.arff", text.replace("1,2", "1,2,3"))
    refused(tmp_path / "bad.arff", "bad.arff, line 5: 3 values, but 2 columns are declared")


def test_a_nominal_column_of_arff_is_refused_only_where_it_is_asked_for(tmp_path):
    text = "@relation r\n@attribute a real\n@attribute c {'dark, red', blue}\n@attribute b real\n"
    text += "@data\n1,'dark, red',2\n3, blue ,?\n"
    table = read_table(write(tmp_path / "data.arff", text))
    assert table.names == ["a", "c", "b"]
    assert_array_equal(table.numbers(["a"]), [[1.0], [3.0]])
    assert_array_equal(table.numbers(["b"], allow_missing=True), [[2.0], [np.nan]])
    assert list(table.columns["c"]) == ["dark, red", "blue"]
    refused(tmp_path / "data.arff", "column 'c': 'dark, red' is not a number", "c")


def test_a_header_is_no_formula_in_a_spreadsheet(tmp_path):
    write_table(tmp_path / "p.csv", {"=1+1": [1.0], "@x": [2.0], "a=b": [3.0]})
    assert (tmp_path / "p.csv").read_text() == "'=1+1,'@x,a=b\n1.0,2.0,3.0\n"
    write_table(tmp_path / "p.parquet", {"=1+1": [1.0]})
    assert read_table(tmp_path / "p.parquet").names == ["=1+1"]


def test_points_among_decimal_commas(tmp_path):
    text = "a;b;c;d\n1,5;12.5;1.376;x1.5\n2;1.376;740;1.376\n"
    table = read_table(write(tmp_path / "data.csv", text), decimal=",")
    assert_array_equal(table.numbers(["a", "b"]), [[1.5, 12.5], [2.0, 1.376]])
    with pytest.raises(TableError, match=r"row 1 \(line 2\), column 'c': '1.376' has a point"):
        table.numbers(["c"])
    assert table.cells_of(["c"], ["c"]) == {"c": ["1.376", "740"]}
    assert table.as_written().columns["a"] == ("1,5", "2") and table.columns["a"] == ["1.5", "2"]
    assert_array_equal(read_table(tmp_path / "data.csv").numbers(["c"]), [[1.376], [740.0]])


@pytest.mark.parametrize("text", ["a;b\n1,5;2e-05\n", 'a,b\n"1,5",2e-05\n', "a|b\n1,5|2e-05\n"])
def test_what_has_decimal_commas_is_written_with_them(tmp_path, text):
    for encoding in ("utf-8", "utf-8-sig"):
        table = read_table(write(tmp_path / "data.csv", text, encoding), decimal=",")
        numbers = dict(zip("ab", table.numbers(["a", "b"]).T, strict=True))
        write_table(tmp_path / "out.csv", numbers, table.style)
        assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "data.csv").read_bytes()


def test_only_columns_that_are_asked_for_must_be_numbers(tmp_path):
    table = read_table(write(tmp_path / "data.csv", "id,a,b\nx1,1,\nx2,2,4\n"))
    assert_array_equal(table.numbers(["a"]), [[1.0], [2.0]])
    assert_array_equal(table.numbers(["b"], allow_missing=True), [[np.nan], [4.0]])


MISTAKES = {
    "comma in a name": (
        'a,"b, c"\n1,2\n',
        "has no column 'b'. It has: a, \"b, c\". A name with a comma stands in double quotes.",
        "b",
    ),
    "wrong column": ("a,b\n1,2\n", "data.csv has no column 'c'. It has: a, b.", "c"),
    "misspelt column": (
        "width,height\n1,2\n",
        r"has no column 'heigth'. Did you mean 'height'\? It has: width, height.",
        "heigth",
    ),
    "small letters": ("Width,Height\n1,2\n", r"'height'. Did you mean 'Height'\?", "height"),
    "text": (
        "a,b\n1,2\n3,high\n",
        r"data.csv, row 2 \(line 3\), column 'b': 'high' is not a number. Mend the cell",
        "b",
    ),
    "decimal comma": (
        "a;b\n1;2,5\n",
        "'2,5' is not a number.*Write numbers with a decimal point",
        "b",
    ),
    "dash": ("a,b\n1,2\n3,-\n", "'-' is not a number.* Leave it empty if the value is mi", "b"),
    "thousands": (
        'a,b\n1,"5,069.00"\n',
        "'5,069.00' is not a number. .*Write numbers without separators of thousands.",
        "b",
    ),
    "thousands or decimals": (
        'a,b\n1,"5,069"\n',
        "If the comma separates thousands, remove it; if it is a decimal mark, say --decimal ','.",
        "b",
    ),
    "words": (
        "a,b\n1,no\n2,\n3,yes\n",
        "'no' is not a number, nor is any other cell of the column. Targets must be numbers; a",
        "b",
    ),
    "empty": (
        "a,b\n\n1,2\n3,\n5,NA\n",
        r"data.csv, row 2 \(line 4\), column 'b': the cell is empty \(2 such cells in the column\)",
        "b",
    ),
    "infinite": ("a\n1\ninf\n", r"row 2 \(line 3\), column 'a': the number is infinite", "a"),
    "duplicate": ("a,b,a\n1,2,3\n", "the header has 'a' more than once. Rename a column", "b"),
    "nameless": ("a,,c\n1,2,3\n", "column 2 has no name in the header. Name it, or", "a"),
    "ragged": (
        "a,b\n1,2\n1,2,3\n",
        "data.csv, line 3: 3 cells, but the header names 2 columns",
        "a",
    ),
    "header only": ("a,b\n", "data.csv has no rows of data", "a"),
    "nothing": ("", "data.csv has no rows of data", "a"),
    "quote": ('a,b\n1,"2\n', "is not a CSV file that can be read: unexpected end of data", "a"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told_with_their_place(tmp_path, name):
    text, message, column = MISTAKES[name]
    refused(write(tmp_path / "data.csv", text), message, column)


@pytest.mark.parametrize("given", [None, "utf-16"])
@pytest.mark.parametrize("mark", ["\ufeff".encode("utf-16-le"), "\ufeff".encode("utf-16-be")])
def test_utf16_is_read_by_its_mark_and_written_so(tmp_path, mark, given):
    kind = "utf-16-le" if mark == b"\xff\xfe" else "utf-16-be"
    path = tmp_path / "data.txt"
    path.write_bytes(mark + "größe\tb\r\n1\t2,5\r\n".encode(kind))
    table = read_table(path, encoding=given, decimal=",")
    assert_array_equal(table.numbers(["größe", "b"]), [[1.0, 2.5]])
    assert table.style == TextStyle("\t", ",", "utf-16")
    write_table(path, {"größe": [1.5]}, table.style)
    assert path.read_bytes().decode("utf-16") == "größe\n1,5\n"


def test_utf16_without_a_mark_needs_its_name(tmp_path):
    path = write(tmp_path / "data.csv", "a,b\n1,2\n", "utf-16-le")
    assert_array_equal(read_table(path, encoding="utf-16-le").numbers(["b"]), [[2.0]])
    refused(path, "is not a CSV file: it holds no text")
    with pytest.raises(TableError, match="that can be read: unknown encoding: utf-17"):
        read_table(path, encoding="utf-17")
    plain = write(tmp_path / "plain.csv", "a,b\n1,2\n")
    with pytest.raises(TableError, match="not utf-16 text. Say how it is encoded"):
        read_table(plain, encoding="utf-16")


@pytest.mark.parametrize("first", ["sep=;", '"sep=;"', "SEP=;"])
def test_a_first_line_may_name_the_separator(tmp_path, first):
    path = write(tmp_path / "data.csv", f"{first}\r\na,1;b\r\n1;2\r\n3;x\r\n")
    table = read_table(path)
    assert table.names == ["a,1", "b"] and table.style.separator == ";"
    refused(path, r"row 2 \(line 4\), column 'b': 'x' is not a number", "b")
    refused(write(path, f"{first}\na;b\n1\n"), "line 3: 1 cell, but the header names 2 columns")


def test_what_is_no_table(tmp_path):
    refused(tmp_path / "none.csv", "none.csv is not there")
    refused(tmp_path, "is a folder, not a file")
    refused(write(tmp_path / "data.xlsx", "x"), "files ending in .csv, .* can be read, not .xlsx")
    (tmp_path / "zip.csv").write_bytes(b"PK\x03\x04rest")
    refused(tmp_path / "zip.csv", "zip.csv is not a CSV file: it holds no text")
    (tmp_path / "picture.csv").write_bytes(b"\x89PNG\0\0\0")
    refused(tmp_path / "picture.csv", "is not a CSV file: it holds no text")
    write(tmp_path / "latin.csv", "ü,b\n1,2\n", "latin-1")
    refused(tmp_path / "latin.csv", "is not a CSV file that can be read: not UTF-8 text")
    refused(write(tmp_path / "text.parquet", "a,b"), "text.parquet is not a Parquet file")


# Writing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_what_is_written_is_read_back(tmp_path, ending):
    path = tmp_path / f"out{ending}"
    write_table(path, dict(zip(NAMES, VALUES.T / 3.0, strict=True)))
    assert_array_equal(read_table(path).numbers(NAMES), VALUES / 3.0)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o400


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_table(tmp_path / "out.csv", {"a": [1.0]})
    assert not list(tmp_path.iterdir())


def test_where_may_be_written(tmp_path):
    file = write(tmp_path / "out.csv", "mine")
    assert check_output(tmp_path / "new.csv", [".csv"], False) == tmp_path / "new.csv"
    assert check_output(file, [".csv"], True) == file
    new = tmp_path / "a" / "b" / "c.csv"
    assert check_output(new, [".csv"], False) == new and not (tmp_path / "a").exists()
    (tmp_path / "folder.csv").mkdir()
    for path, message in [
        (file, "exists already: choose another name, or --force"),
        (tmp_path / "folder.csv", "exists already: it is a folder"),
        (file / "a" / "b.csv", "out.csv is not a folder: choose another place"),
        (tmp_path / "a.txt", "choose a name that ends in .csv or .parquet"),
    ]:
        with pytest.raises(TableError, match=message):
            check_output(path, [".csv", ".parquet"], False)


def test_what_is_read_is_not_replaced(tmp_path):
    file = write(tmp_path / "data.csv", "mine")
    (tmp_path / "folder").mkdir()
    inside, alias = write(tmp_path / "folder" / "b.csv", "mine"), tmp_path / "alias.csv"
    alias.symlink_to(file)
    for path, read in [(file, file), (alias, file), (file, alias), (inside, inside.parent)]:
        for force in (False, True):
            with pytest.raises(TableError, match="is also read by this command, so that it is not"):
                check_output(path, [".csv"], force, [tmp_path / "gone.csv", read])
    assert check_output(file, [".csv"], True, [inside, tmp_path / "folder"]) == file


def test_characters_that_the_encoding_lacks_are_written_in_utf8(tmp_path):
    path = tmp_path / "out.csv"
    write_table(path, {"ü": [1.5]}, TextStyle(";", ",", "latin-1"))
    assert path.read_bytes() == "ü\n1,5\n".encode("latin-1")
    write_table(path, {"Δ": [1.5]}, TextStyle(";", ",", "latin-1"))
    assert path.read_text(encoding="utf-8") == "Δ\n1,5\n"
