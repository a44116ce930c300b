"""Reports: figures, a page, films and a live page, all of them made from run folders."""
