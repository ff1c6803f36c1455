"""Programs that measure vitconvert, and other packages' releases.

Without this file Python would find a package of the same name that another project installs first,
as opacus does.
"""
