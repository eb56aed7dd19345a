//! Which documents of a task are near-duplicates.
//!
//! A grid (`dedup/grid.rs`), everything in it ascending, with three columns: the dropped documents, each with its index
//! (u32), the ordinal (u64) of the document that it is similar to and their similarity (f32); the dropped pieces of the
//! task's train split (u32); those of its validation split.

use super::dropped_path;
use crate::atomic::temporary_name;
use crate::dedup::grid::{GridFile, GridWriter, Magic, commit};
use crate::error::Result;
use crate::near::ordinal::Ordinal;
use crate::own_files::damaged;
use crate::prepare::{Job, Split};
use std::path::PathBuf;

const MAGIC: Magic = *b"ramlndr1";
const DOCUMENT: usize = 16;
const PIECE: usize = 4;
const BLOCK: usize = 64 << 10;

/// A document that is dropped, and the first one that stays and is similar to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drop {
    pub index: u32,
    pub kept: Ordinal,
    pub similarity: f64,
}

pub struct DroppedWriter {
    grid: GridWriter,
    temporary: PathBuf,
    path: PathBuf,
    documents: u64,
}

impl DroppedWriter {
    pub fn create(job: &Job, task: u32) -> Result<DroppedWriter> {
        let path = dropped_path(job, task);
        let temporary = temporary_name(&path);
        let grid = GridWriter::create(&temporary, MAGIC, 3)?;
        Ok(DroppedWriter { grid, temporary, path, documents: 0 })
    }

    pub fn write(&mut self, documents: &[Drop], pieces: &[Vec<u32>; 2]) -> Result<()> {
        for drop in documents {
            self.grid.append(&drop.index.to_le_bytes())?;
            self.grid.append(&drop.kept.number().to_le_bytes())?;
            self.grid.append(&(drop.similarity as f32).to_le_bytes())?;
        }
        for pieces in pieces {
            self.grid.close_column();
            pieces.iter().try_for_each(|piece| self.grid.append(&piece.to_le_bytes()))?;
        }
        self.documents += documents.len() as u64;
        self.grid.end_row()
    }

    pub fn commit(self) -> Result<()> {
        self.grid.finish(self.documents)?;
        commit(&self.temporary, &self.path)
    }
}

/// How many documents of a task are dropped.
pub fn count(job: &Job, task: u32) -> Result<u64> {
    Ok(GridFile::open(&dropped_path(job, task), MAGIC)?.units)
}

/// Calls `each` with the dropped documents of a task, in order.
pub fn for_each(job: &Job, task: u32, mut each: impl FnMut(Drop) -> Result<()>) -> Result<()> {
    let file = GridFile::open(&dropped_path(job, task), MAGIC)?;
    let mut block = vec![0; BLOCK];
    for row in 0..file.rows() {
        let mut cell = file.cell(row, 0, DOCUMENT)?;
        while let Some(bytes) = cell.next(&mut block)? {
            for record in bytes.chunks_exact(DOCUMENT) {
                let index = u32::from_le_bytes(record[..4].try_into().unwrap());
                let kept = Ordinal::from_number(u64::from_le_bytes(record[4..12].try_into().unwrap()));
                let similarity = f64::from(f32::from_le_bytes(record[12..].try_into().unwrap()));
                each(Drop { index, kept, similarity })?;
            }
        }
    }
    Ok(())
}

/// The dropped pieces of a task's split, in order, a block at a time.
pub struct DroppedPieces {
    file: Option<(GridFile, PathBuf)>,
    column: usize,
    row: usize,
    /// Pieces of the current row that are not read yet.
    left: Vec<u32>,
}

impl DroppedPieces {
    /// Nothing is dropped if the run does not compare documents.
    pub fn open(job: &Job, task: u32, split: Split) -> Result<DroppedPieces> {
        let file = match job.plan.near {
            Some(_) => {
                let path = dropped_path(job, task);
                Some((GridFile::open(&path, MAGIC)?, path))
            }
            None => None,
        };
        Ok(DroppedPieces { file, column: 1 + split as usize, row: 0, left: Vec::new() })
    }

    /// Whether a piece is dropped; to be called with increasing numbers.
    #[inline]
    pub fn contains(&mut self, piece: u64) -> Result<bool> {
        if self.file.is_none() {
            return Ok(false);
        }
        self.advance(piece)
    }

    fn advance(&mut self, piece: u64) -> Result<bool> {
        loop {
            while let Some(&next) = self.left.last() {
                if u64::from(next) > piece {
                    return Ok(false);
                }
                self.left.pop();
                if u64::from(next) == piece {
                    return Ok(true);
                }
            }
            let Some((file, path)) = &self.file else { return Ok(false) };
            if self.row == file.rows() {
                return Ok(false);
            }
            if file.columns != 3 {
                return Err(damaged(path));
            }
            let mut cell = file.cell(self.row, self.column, PIECE)?;
            let mut bytes = vec![0; cell.records() as usize * PIECE];
            cell.next(&mut bytes)?;
            self.left = bytes
                .chunks_exact(PIECE)
                .rev()
                .map(|piece| u32::from_le_bytes(piece.try_into().unwrap()))
                .collect();
            self.row += 1;
        }
    }
}
