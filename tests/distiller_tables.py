"""Small tables of the form that Distiller writes."""

HEADER = "parameter,sparsity,top1,top5,loss"
ROWS = (
    "module.conv1.weight,0.0,69.758,89.078,1.2514319637296152",
    "module.conv1.weight,0.15000000000000002,69.5,89.0,1.26",
    "module.conv1.weight,0.5,41.25,66.5,3.125",
    "module.layer1.0.conv1.weight,0.0,69.758,89.078,1.2514319622090884",
    "module.layer1.0.conv1.weight,0.15000000000000002,69.76,89.07,1.2515",
    "module.layer1.0.conv1.weight,0.5,69.0,88.5,1.3",
    "module.fc.weight,0.0,69.758,89.078,1.2514319622090884",
    "module.fc.weight,0.15000000000000002,69.7,89.06,1.2516",
    "module.fc.weight,0.5,68.0,88.0,1.35",
)
TABLE = "\n".join((HEADER, *ROWS)) + "\n"
"""Three layers at 15 and 50 %; conv1 is by far the most fragile."""


def table(*rows: str, header: str = HEADER) -> str:
    return "\n".join((header, *rows)) + "\n"
