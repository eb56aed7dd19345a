//! Memory of the process: what the system and the allocator keep.

use super::guarded;
use crate::pages;
use pyo3::prelude::*;

/// Releases the unmodified pages of mapped files; returns how many bytes.
#[pyfunction]
pub fn release_file_pages(py: Python<'_>) -> PyResult<u64> {
    guarded(|| Ok(py.detach(pages::release_file_pages)))
}

/// Splits the large pages in which the mapped files with these names are cached.
#[pyfunction]
pub fn split_file_pages(py: Python<'_>, names: Vec<String>) -> PyResult<()> {
    guarded(|| {
        let named = |path: &str| names.iter().any(|name| path.rsplit('/').next() == Some(name));
        py.detach(|| pages::split_file_pages(named));
        Ok(())
    })
}

/// Whether the allocator keeps large freed blocks for reuse or returns each to the system.
#[pyfunction]
pub fn keep_large_blocks(keep: bool) -> PyResult<()> {
    guarded(|| {
        pages::keep_large_blocks(keep);
        Ok(())
    })
}

/// Returns freed memory that the allocator has kept to the system.
#[pyfunction]
pub fn release_freed_memory(py: Python<'_>) -> PyResult<()> {
    guarded(|| {
        py.detach(pages::release_freed_memory);
        Ok(())
    })
}
