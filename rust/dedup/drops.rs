//! Which units of one task are to be left out, gathered from the drop files of all partitions.
//!
//! A drop file is a grid (`grid.rs`): a row for each slice the partition was settled in, a column for each task; a
//! stretch is rising indices, u32.

use super::grid::GridFile;
use super::settle::DROPS_MAGIC;
use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

const INDEX: usize = 4;
const READ_BLOCK: usize = 64 << 10;

/// Units that have a bit at a time: 16 MB. Only a task of one huge compressed file has more.
const WINDOW: u64 = 128 << 20;

/// One bit a unit: 2 MB for 16 million lines, however many are left out. A task with more units than a window is
/// gone through window by window, for which the files are read again.
pub struct Drops {
    task: usize,
    units: u64,
    files: Vec<PathBuf>,
    window: u64,
    first: u64,
    bits: Vec<u64>,
    count: u64,
}

impl Drops {
    /// `units` is what the task's `RecordSummary` says; the files are those of all partitions.
    pub fn load(task: u32, units: u64, drop_files: Vec<PathBuf>) -> Result<Drops> {
        Self::with_window(task, units, drop_files, WINDOW)
    }

    pub(super) fn with_window(task: u32, units: u64, files: Vec<PathBuf>, window: u64) -> Result<Drops> {
        let bits = vec![0; units.min(window).div_ceil(64) as usize];
        let mut drops = Drops { task: task as usize, units, files, window, first: 0, bits, count: 0 };
        drops.fill()?;
        Ok(drops)
    }

    /// The bits of the window from `first` on.
    fn fill(&mut self) -> Result<()> {
        self.bits.fill(0);
        self.count = 0;
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
                "{path} knows {tasks} tasks, none with number {task}: it is of another run, remove it and start anew"
            )));
        }
        for row in 0..file.rows() {
            let mut stretch = file.stretch(row, self.task, INDEX)?;
            self.count += stretch.records();
            while let Some(bytes) = stretch.next(block)? {
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

    /// Whether to leave out the unit; asked with rising indices.
    #[inline]
    pub fn contains(&mut self, index: u64) -> Result<bool> {
        if index - self.first >= self.window {
            self.first = index / self.window * self.window;
            self.fill()?;
        }
        let at = index - self.first;
        Ok(self.bits.get((at / 64) as usize).is_some_and(|word| word >> (at % 64) & 1 != 0))
    }

    /// Units to leave out, of the whole task.
    pub fn count(&self) -> u64 {
        self.count
    }
}
