"""Programs for those who change this project; `README.md` lists them. None is installed with the library."""
