"""HTML reports of runs (`build.write_report`) and figures for publications (`figures.write_figures`)."""
