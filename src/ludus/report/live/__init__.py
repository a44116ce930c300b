"""The live page: run folders in a browser while training goes on."""
