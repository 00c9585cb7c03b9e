"""x"""


def write(folder, page): ...
