//! Which units of one task to drop, collected from the drop files of all partitions.
//!
//! A drop file is a grid (`grid.rs`): a row for each slice in which the partition was settled, a column for each task;
//! a cell has increasing indices, u32.

use super::grid::GridFile;
use super::settle::DROPS_MAGIC;
use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

const INDEX: usize = 4;
const READ_BLOCK: usize = 64 << 10;

/// Units per window: 16 MB of bits. Only a task of one huge compressed file has more.
const WINDOW: u64 = 128 << 20;

/// One bit per unit: 2 MB for 16 million lines, however many are dropped. A task with more units than a window is
/// processed window by window, and the files are read again for each.
pub struct Drops {
    task: usize,
    units: u64,
    files: Vec<PathBuf>,
    window: u64,
    first: u64,
    bits: Vec<u64>,
}

impl Drops {
    /// `units` is what `RecordWriter::finish` returned for the task; the files are those of all partitions.
    pub fn load(task: u32, units: u64, drop_files: Vec<PathBuf>) -> Result<Drops> {
        Self::with_window(task, units, drop_files, WINDOW)
    }

    pub(super) fn with_window(task: u32, units: u64, files: Vec<PathBuf>, window: u64) -> Result<Drops> {
        let bits = vec![0; units.min(window).div_ceil(64) as usize];
        let mut drops = Drops { task: task as usize, units, files, window, first: 0, bits };
        drops.fill()?;
        Ok(drops)
    }

    /// Sets the bits of the window that begins at `first`.
    fn fill(&mut self) -> Result<()> {
        self.bits.fill(0);
        let mut block = vec![0; READ_BLOCK];
        for path in std::mem::take(&mut self.files) {
            self.fill_from(&path, &mut block)?;
            self.files.push(path);
        }
        Ok(())
    }

    fn fill_from(&mut self, path: &Path, block: &mut [u8]) -> Result<()> {
        let file = GridFile::open(path, DROPS_MAGIC)?;
        if self.task >= file.columns {
            let (path, tasks, task) = (path.display(), file.columns, self.task);
            return Err(Error::Invalid(format!(
                "{path} has {tasks} tasks, but not task {task}: it is from another run, remove it and run the same command again"
            )));
        }
        for row in 0..file.rows() {
            let mut cell = file.cell(row, self.task, INDEX)?;
            while let Some(bytes) = cell.next(block)? {
                for index in bytes.chunks_exact(INDEX) {
                    let index = u64::from(u32::from_le_bytes(index.try_into().unwrap()));
                    if index >= self.units {
                        return Err(file.damaged());
                    }
                    let at = index.wrapping_sub(self.first);
                    if at < self.window {
                        self.bits[at as usize / 64] |= 1 << (at % 64);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether to drop the unit; to be called with increasing indices.
    #[inline]
    pub fn contains(&mut self, index: u64) -> Result<bool> {
        if index - self.first >= self.window {
            self.first = index / self.window * self.window;
            self.fill()?;
        }
        let at = index - self.first;
        Ok(self.bits.get((at / 64) as usize).is_some_and(|word| word >> (at % 64) & 1 != 0))
    }
}
