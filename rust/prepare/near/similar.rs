//! What comparing a task found: for each document that is similar to an earlier one, the first such, and those that it
//! may be similar to after that.
//!
//! A grid (`dedup/grid.rs`) with two columns, a row for each window: the documents in order, each with its index (u32),
//! how many follow in the second column (u32), the ordinal (u64) of the first similar one and their similarity (f64);
//! the ordinals (u64) of the others, earliest first.

use super::NEAR;
use crate::atomic::temporary_name;
use crate::dedup::grid::{GridFile, GridWriter, Magic, commit};
use crate::error::Result;
use crate::near::ordinal::Ordinal;
use crate::own_files::damaged;
use crate::prepare::Job;
use std::path::PathBuf;

const MAGIC: Magic = *b"ramlsim1";
const DOCUMENT: usize = 24;
const OTHER: usize = 8;

pub fn similar_path(job: &Job, task: u32) -> PathBuf {
    job.work.join(NEAR).join(format!("{task:06}.similar"))
}

/// A document and the first earlier one that is similar to it, whether that one is kept or not.
#[derive(Clone, Debug, PartialEq)]
pub struct Similar {
    pub index: u32,
    pub first: Ordinal,
    pub similarity: f64,
    /// Later candidates, which were not compared.
    pub others: Vec<Ordinal>,
}

pub struct SimilarWriter {
    grid: GridWriter,
    temporary: PathBuf,
    path: PathBuf,
    documents: u64,
}

impl SimilarWriter {
    pub fn create(job: &Job, task: u32) -> Result<SimilarWriter> {
        let path = similar_path(job, task);
        let temporary = temporary_name(&path);
        let grid = GridWriter::create(&temporary, MAGIC, 2)?;
        Ok(SimilarWriter { grid, temporary, path, documents: 0 })
    }

    pub fn write(&mut self, window: &[Similar]) -> Result<()> {
        for each in window {
            self.grid.append(&each.index.to_le_bytes())?;
            self.grid.append(&(each.others.len() as u32).to_le_bytes())?;
            self.grid.append(&each.first.number().to_le_bytes())?;
            self.grid.append(&each.similarity.to_le_bytes())?;
        }
        self.grid.close_column();
        for other in window.iter().flat_map(|each| &each.others) {
            self.grid.append(&other.number().to_le_bytes())?;
        }
        self.documents += window.len() as u64;
        self.grid.end_row()
    }

    pub fn commit(self) -> Result<()> {
        self.grid.finish(self.documents)?;
        commit(&self.temporary, &self.path)
    }
}

/// Calls `each` with what was found for a task, in order.
pub fn for_each(job: &Job, task: u32, mut each: impl FnMut(Similar) -> Result<()>) -> Result<()> {
    let path = similar_path(job, task);
    let file = GridFile::open(&path, MAGIC)?;
    if file.columns != 2 {
        return Err(damaged(&path));
    }
    for row in 0..file.rows() {
        let (documents, others) = (read(&file, row, 0, DOCUMENT)?, read(&file, row, 1, OTHER)?);
        let mut others = others.chunks_exact(OTHER).map(ordinal);
        for record in documents.chunks_exact(DOCUMENT) {
            let count = u32::from_le_bytes(record[4..8].try_into().unwrap()) as usize;
            let found = Similar {
                index: u32::from_le_bytes(record[..4].try_into().unwrap()),
                first: ordinal(&record[8..16]),
                similarity: f64::from_le_bytes(record[16..].try_into().unwrap()),
                others: others.by_ref().take(count).collect(),
            };
            if found.others.len() != count {
                return Err(damaged(&path));
            }
            each(found)?;
        }
    }
    Ok(())
}

/// A window is at most as large as the memory of the process that wrote it had space for.
fn read(file: &GridFile, row: usize, column: usize, record: usize) -> Result<Vec<u8>> {
    let mut cell = file.cell(row, column, record)?;
    let mut all = Vec::with_capacity(cell.records() as usize * record);
    let mut block = vec![0; BLOCK / record * record];
    while let Some(bytes) = cell.next(&mut block)? {
        all.extend_from_slice(bytes);
    }
    Ok(all)
}

const BLOCK: usize = 64 << 10;

fn ordinal(bytes: &[u8]) -> Ordinal {
    Ordinal::from_number(u64::from_le_bytes(bytes.try_into().unwrap()))
}
