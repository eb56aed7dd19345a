//! What Python asks of the memory of the process.

use super::guarded;
use crate::pages;
use pyo3::prelude::*;

/// Gives back the pages of mapped files that no one has written to; returns their bytes.
#[pyfunction]
pub fn release_file_pages(py: Python<'_>) -> PyResult<u64> {
    guarded(|| Ok(py.detach(pages::release_file_pages)))
}

/// Splits the large pages that mapped files with these names are cached in.
#[pyfunction]
pub fn split_file_pages(py: Python<'_>, names: Vec<String>) {
    py.detach(|| {
        pages::split_file_pages(|path| names.iter().any(|name| path.rsplit('/').next() == Some(name)));
    });
}

/// Whether the allocator keeps large blocks for the next one, or gives each back.
#[pyfunction]
pub fn keep_large_blocks(keep: bool) -> PyResult<()> {
    guarded(|| {
        pages::keep_large_blocks(keep);
        Ok(())
    })
}

/// Gives back what was freed and the allocator has kept.
#[pyfunction]
pub fn release_freed_memory(py: Python<'_>) -> PyResult<()> {
    guarded(|| {
        py.detach(pages::release_freed_memory);
        Ok(())
    })
}
