"""The page of a partition, in a browser -> docs/images/vgg16.png: its network, who computes what.

Made again with `python docs/picture.py`, where there is a chromium: a screenshot of the page of
`hgpart partition vgg16 --k 8 --eps 0.1 --html page.html`.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

COMMAND = ["hgpart", "partition", "vgg16", "--k", "8", "--eps", "0.1", "--html"]
PICTURE = Path(__file__).parent / "images" / "vgg16.png"
SIZE = "--window-size=500,910"
# The network alone, all of it.
STYLE = """<style>
header, footer, section:not(:has(.network)), h2, p { display: none; }
.network .wide { border: 0; max-height: none; }
.legend { justify-content: center; }
</style></head>"""

with tempfile.TemporaryDirectory() as folder:
    page = Path(folder) / "page.html"
    subprocess.run([*COMMAND, str(page)], check=True, stdout=subprocess.DEVNULL)
    page.write_text(page.read_text().replace("</head>", STYLE, 1))
    browser = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    look = ["--force-device-scale-factor=2", "--blink-settings=preferredColorScheme=1", SIZE]
    places = [f"--user-data-dir={folder}/profile", f"--screenshot={PICTURE}", page.as_uri()]
    arguments = [*browser, "--virtual-time-budget=5000", *look, *places]
    subprocess.run(arguments, check=True, capture_output=True)
