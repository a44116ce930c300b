"""What run folders have to tell: lists, comparisons, figures, a page. Reads run folders, knows no algorithm."""
