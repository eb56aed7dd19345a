//! Which documents of a task are dropped, in order: a grid (`dedup/grid.rs`) with one column, of each its index (u32),
//! the ordinal (u64) of the document that is kept instead and their similarity (f64).

use super::NEAR;
use super::dropped::Drop;
use crate::atomic::temporary_name;
use crate::dedup::grid::{GridFile, GridWriter, Magic, commit};
use crate::error::Result;
use crate::near::ordinal::Ordinal;
use crate::prepare::Job;
use std::path::PathBuf;

const MAGIC: Magic = *b"ramldec1";
const RECORD: usize = 20;
const BLOCK: usize = 3200 * RECORD;
/// Documents in a row.
const ROW: u64 = 1 << 16;

pub fn decided_path(job: &Job, task: u32) -> PathBuf {
    job.work.join(NEAR).join(format!("{task:06}.decided"))
}

pub struct DecidedWriter {
    grid: GridWriter,
    temporary: PathBuf,
    path: PathBuf,
    documents: u64,
}

impl DecidedWriter {
    pub fn create(job: &Job, task: u32) -> Result<DecidedWriter> {
        let path = decided_path(job, task);
        let temporary = temporary_name(&path);
        let grid = GridWriter::create(&temporary, MAGIC, 1)?;
        Ok(DecidedWriter { grid, temporary, path, documents: 0 })
    }

    pub fn push(&mut self, drop: &Drop) -> Result<()> {
        self.grid.append(&drop.index.to_le_bytes())?;
        self.grid.append(&drop.kept.number().to_le_bytes())?;
        self.grid.append(&drop.similarity.to_le_bytes())?;
        self.documents += 1;
        if self.documents.is_multiple_of(ROW) { self.grid.end_row() } else { Ok(()) }
    }

    pub fn commit(mut self) -> Result<()> {
        if !self.documents.is_multiple_of(ROW) {
            self.grid.end_row()?;
        }
        self.grid.finish(self.documents)?;
        commit(&self.temporary, &self.path)
    }
}

/// Calls `each` with the dropped documents of a task, in order, a block at a time.
pub fn for_each(job: &Job, task: u32, mut each: impl FnMut(&[Drop]) -> Result<()>) -> Result<()> {
    let file = GridFile::open(&decided_path(job, task), MAGIC)?;
    let mut block = vec![0; BLOCK];
    for row in 0..file.rows() {
        let mut cell = file.cell(row, 0, RECORD)?;
        while let Some(bytes) = cell.next(&mut block)? {
            let drops: Vec<Drop> = bytes.chunks_exact(RECORD).map(parsed).collect();
            each(&drops)?;
        }
    }
    Ok(())
}

fn parsed(record: &[u8]) -> Drop {
    Drop {
        index: u32::from_le_bytes(record[..4].try_into().unwrap()),
        kept: Ordinal::from_number(u64::from_le_bytes(record[4..12].try_into().unwrap())),
        similarity: f64::from_le_bytes(record[12..].try_into().unwrap()),
    }
}
