//! Finds the duplicates of one partition, over all tasks.
//!
//! Records come in the order of (task, index), so nothing has to be sorted: a hash that is already in the set is a
//! duplicate. If the distinct hashes of a partition do not fit, it is processed again in slices by the next bits of the
//! hash; so less memory means more passes, not other results.
//!
//! Hashes of earlier runs in a cache are not added to the set, they only mark hashes that are in it: a cache may be a
//! thousand times larger than this run. The price is a second pass over the records, to drop what is marked.

use super::cache::CacheFile;
use super::grid::{GridFile, GridWriter, Magic, WRITE_BUFFER, commit};
use super::records::{self, RECORD};
use super::set::{Added, Distinct, MAX_FIXED_BITS, MIN_SLOTS, Marks};
use crate::atomic::temporary_name;
use crate::crew::Progress;
use crate::error::{Error, Result};
use crate::own_files::damaged;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

pub const DROPS_MAGIC: Magic = *b"ramldrp1";
pub const FRESH_MAGIC: Magic = *b"ramlnew1";

const READ_BLOCK: usize = 256 << 10;
/// Records whose slots are prefetched before the first is looked up.
const BATCH: usize = 64;
/// Bounds the list of pending slices.
const MAX_BITS_AT_ONCE: u32 = 8;

/// How to settle all partitions. Threads share it, each working on other partitions.
pub struct SettlePlan {
    /// Number of partitions of the record files.
    pub partitions: u32,
    /// The finished record file of each task, in the order of tasks.
    pub records: Vec<PathBuf>,
    /// Hashes of earlier runs: units with one of them are duplicates.
    pub caches: Vec<CacheFile>,
    /// Whether to write the new hashes, for `commit_cache`.
    pub keep_fresh: bool,
    /// Folder of the results.
    pub out: PathBuf,
    /// Bytes for one call of `settle`; at least `LEAST_MEMORY`.
    pub memory: usize,
}

/// The file of a partition's duplicates. If it exists, the partition is settled.
pub fn drop_file(out: &Path, partition: u32) -> PathBuf {
    out.join(format!("{partition:04}.drops"))
}

/// A partition's new hashes.
pub fn fresh_file(out: &Path, partition: u32) -> PathBuf {
    out.join(format!("{partition:04}.fresh"))
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SettleSummary {
    pub records: u64,
    pub dropped: u64,
    /// How often the records were read, including partial passes: 1 if all fit into the set and there was no cache.
    pub passes: u32,
}

/// The hashes that share their first `fixed` bits with `first`.
#[derive(Clone, Copy)]
pub struct Slice {
    fixed: u32,
    pub first: u128,
}

impl Slice {
    fn partition(partition: u32, partitions: u32) -> Self {
        let fixed = partitions.ilog2();
        Slice { fixed, first: u128::from(partition).checked_shl(128 - fixed).unwrap_or(0) }
    }

    fn mask(self) -> u128 {
        !u128::MAX.checked_shr(self.fixed).unwrap_or(0)
    }

    pub fn last(self) -> u128 {
        self.first | !self.mask()
    }

    /// 2^bits parts of equal width, in reverse order.
    fn split(self, bits: u32) -> impl Iterator<Item = Slice> {
        let fixed = self.fixed + bits;
        (0..1u128 << bits).rev().map(move |n| Slice { fixed, first: self.first | n << (128 - fixed) })
    }
}

/// Settles one partition and commits its files.
pub fn settle(partition: u32, plan: &SettlePlan, progress: &Progress) -> Result<SettleSummary> {
    let drop_file = drop_file(&plan.out, partition);
    let fresh_file = fresh_file(&plan.out, partition);
    let (drop_temporary, fresh_temporary) = (temporary_name(&drop_file), temporary_name(&fresh_file));
    let mut settling = Settling {
        reader: Reader::new(partition, plan)?,
        plan,
        progress,
        drops: GridWriter::create(&drop_temporary, DROPS_MAGIC, plan.records.len())?,
        summary: SettleSummary::default(),
    };
    let mut fresh = match plan.keep_fresh {
        true => Some(GridWriter::create(&fresh_temporary, FRESH_MAGIC, 1)?),
        false => None,
    };
    let mut fresh_count = 0;
    let records = settling.reader.total;
    let mut set = Distinct::new(slots(records, plan.memory));
    let (mut known, mut seen) = match plan.caches.is_empty() {
        true => Default::default(),
        false => (Marks::new(&set), Marks::new(&set)),
    };
    let mut slices = vec![Slice::partition(partition, plan.partitions)];
    while let Some(slice) = slices.pop() {
        set.begin(slice.fixed);
        let pass = match plan.caches.is_empty() {
            true => settling.drop_repeated(slice, &mut set)?,
            false => settling.drop_known_and_repeated(slice, &mut set, &mut known, &mut seen)?,
        };
        if let ControlFlow::Break(scanned) = pass {
            settling.drops.abandon_row()?;
            slices.extend(slice.split(bits_to_split(records, scanned).min(MAX_FIXED_BITS - slice.fixed)));
            continue;
        }
        settling.drops.end_row()?;
        if let Some(fresh) = &mut fresh {
            let hashes = set.take_sorted(&known);
            fresh_count += hashes.len() as u64;
            hashes.iter().try_for_each(|hash| fresh.append(&hash.to_le_bytes()))?;
            fresh.end_row()?;
        }
    }
    if let Some(fresh) = fresh {
        fresh.finish(fresh_count)?;
        commit(&fresh_temporary, &fresh_file)?;
    }
    let Settling { drops, mut summary, .. } = settling;
    summary.records = records;
    drops.finish(summary.dropped)?;
    commit(&drop_temporary, &drop_file)?;
    Ok(summary)
}

/// As many slots as the records can need, or as fit into the memory next to the buffers.
fn slots(records: u64, memory: usize) -> usize {
    let buffers = read_block(memory) + 3 * WRITE_BUFFER;
    // 16 bytes, and a bit in each of two bitmaps.
    let most = memory.saturating_sub(buffers) / 65 * 4;
    Distinct::slots_for(records).min(most).max(MIN_SLOTS)
}

fn read_block(memory: usize) -> usize {
    (memory / 8).clamp(BATCH * RECORD, READ_BLOCK) / RECORD * RECORD
}

/// The set was full after `scanned` of `records`: by how many more bits to split, so that slices fit. Half of what is
/// proportional, because more text means more repetition; a slice that is still too large is split again.
fn bits_to_split(records: u64, scanned: u64) -> u32 {
    let parts = (records as f64 * 0.5 / scanned.max(1) as f64).ceil().max(2.0);
    (parts as u64).next_power_of_two().ilog2().min(MAX_BITS_AT_ONCE)
}

struct Settling<'a> {
    reader: Reader<'a>,
    plan: &'a SettlePlan,
    progress: &'a Progress,
    drops: GridWriter,
    summary: SettleSummary,
}

impl Settling<'_> {
    /// One pass: a hash that is already in the set is a duplicate. Breaks with the records scanned if the set is full.
    fn drop_repeated(&mut self, slice: Slice, set: &mut Distinct) -> Result<ControlFlow<u64>> {
        self.summary.passes += 1;
        let (mut dropped, mut counted) = (0, 0);
        let pass = self.reader.scan(slice, self.progress, |task, batch| {
            batch.iter().for_each(|record| set.prefetch(record.hash));
            for record in batch {
                match set.add(record.hash) {
                    Added::New => {}
                    Added::Seen => {
                        drop_unit(&mut self.drops, task, record.index)?;
                        dropped += 1;
                    }
                    Added::Full => return Ok(ControlFlow::Break(())),
                }
            }
            counted += batch.len() as u64;
            self.progress.done.fetch_add(batch.len() as u64, Relaxed);
            Ok(ControlFlow::Continue(()))
        })?;
        match pass {
            ControlFlow::Continue(()) => self.summary.dropped += dropped,
            // All of it will be processed again.
            ControlFlow::Break(_) => _ = self.progress.done.fetch_sub(counted, Relaxed),
        }
        Ok(pass)
    }

    /// Two passes: collect the hashes, mark those in the caches, then drop what is marked or repeated.
    fn drop_known_and_repeated(
        &mut self,
        slice: Slice,
        set: &mut Distinct,
        known: &mut Marks,
        seen: &mut Marks,
    ) -> Result<ControlFlow<u64>> {
        self.summary.passes += 1;
        let gathered = self.reader.scan(slice, self.progress, |_, batch| {
            batch.iter().for_each(|record| set.prefetch(record.hash));
            let full = batch.iter().any(|record| set.add(record.hash) == Added::Full);
            Ok(if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        if gathered.is_break() {
            return Ok(gathered);
        }
        known.clear();
        seen.clear();
        for cache in &self.plan.caches {
            cache.read(slice, &mut self.reader.block, |hashes| {
                for hash in hashes.chunks_exact(16) {
                    if let Some(slot) = set.slot(u128::from_le_bytes(hash.try_into().unwrap())) {
                        known.set(slot);
                    }
                }
                self.progress.check()
            })?;
        }
        self.summary.passes += 1;
        self.reader.scan(slice, self.progress, |task, batch| {
            batch.iter().for_each(|record| set.prefetch(record.hash));
            for record in batch {
                // The first pass added it, unless the file has changed since.
                let slot = set.slot(record.hash).ok_or_else(|| damaged(&self.plan.records[task]))?;
                if known.has(slot) || seen.set(slot) {
                    drop_unit(&mut self.drops, task, record.index)?;
                    self.summary.dropped += 1;
                }
            }
            self.progress.done.fetch_add(batch.len() as u64, Relaxed);
            Ok(ControlFlow::Continue(()))
        })
    }
}

#[inline(always)]
fn drop_unit(drops: &mut GridWriter, task: usize, index: u32) -> Result<()> {
    while drops.column() < task {
        drops.close_column();
    }
    drops.append(&index.to_le_bytes())
}

#[derive(Clone, Copy, Default)]
struct Record {
    hash: u128,
    index: u32,
}

/// Reads a partition's records, any number of times. Files are opened one after the other: there may be more than a
/// process may have open.
struct Reader<'a> {
    partition: usize,
    plan: &'a SettlePlan,
    block: Vec<u8>,
    total: u64,
}

impl<'a> Reader<'a> {
    fn new(partition: u32, plan: &'a SettlePlan) -> Result<Self> {
        let partition = partition as usize;
        let block = vec![0; read_block(plan.memory)];
        let mut reader = Reader { partition, plan, block, total: 0 };
        for path in &plan.records {
            let file = reader.open(path)?;
            for row in 0..file.rows() {
                reader.total += file.cell(row, partition, RECORD)?.records();
            }
        }
        Ok(reader)
    }

    fn open(&self, path: &Path) -> Result<GridFile> {
        let file = GridFile::open(path, records::MAGIC)?;
        if file.columns != self.plan.partitions as usize {
            return Err(Error::Invalid(format!(
                "{} has {} partitions, not {}: it is from another run, remove it and run the same command again",
                path.display(),
                file.columns,
                self.plan.partitions
            )));
        }
        Ok(file)
    }

    /// Calls `each(task, records)` with the slice's records in order, a few at a time. If it breaks, so does this, with
    /// the number of records scanned.
    fn scan(
        &mut self,
        slice: Slice,
        progress: &Progress,
        mut each: impl FnMut(usize, &[Record]) -> Result<ControlFlow<()>>,
    ) -> Result<ControlFlow<u64>> {
        let (mask, first) = (slice.mask(), slice.first);
        let mut batch = [Record::default(); BATCH];
        let mut scanned = 0;
        for (task, path) in self.plan.records.iter().enumerate() {
            let file = self.open(path)?;
            for row in 0..file.rows() {
                let mut cell = file.cell(row, self.partition, RECORD)?;
                while let Some(bytes) = cell.next(&mut self.block)? {
                    progress.check()?;
                    for records in bytes.chunks(BATCH * RECORD) {
                        let mut count = 0;
                        for record in records.chunks_exact(RECORD) {
                            let hash = u128::from_le_bytes(record[..16].try_into().unwrap());
                            let index = u32::from_le_bytes(record[16..].try_into().unwrap());
                            batch[count] = Record { hash, index };
                            count += usize::from(hash & mask == first);
                        }
                        scanned += (records.len() / RECORD) as u64;
                        if each(task, &batch[..count])?.is_break() {
                            return Ok(ControlFlow::Break(scanned));
                        }
                    }
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}
