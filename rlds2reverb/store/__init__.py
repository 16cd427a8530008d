"""Rows of bytes in memory or in mapped files, their items, and samplers.

A `RowLayout` assigns bytes of rows to columns, a `StoreWriter` writes rows, and
a `RowStore` gathers them. An `ItemIndex` finds the rows of items, and a
`Sampler` draws items. Nothing here uses TensorFlow.
"""
