//! Reads examples: windows of a stream of ids in any number of shards, or packed sequences.

use super::open_files::OpenFiles;
use super::row::{Rows, fill_row};
use super::schedule::Window;
use crate::error::{Error, Result};
use crate::own_files;
use crate::source::Stamp;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Mutex;

/// How ids are written: little-endian integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdType {
    /// 1, 2, 4 or 8.
    pub bytes: usize,
    pub signed: bool,
}

impl IdType {
    /// NumPy's name without the byte order: "u2", "i4".
    pub fn named(name: &str) -> Option<IdType> {
        let signed = match name.as_bytes().first()? {
            b'u' => false,
            b'i' => true,
            _ => return None,
        };
        let bytes = name[1..].parse().ok().filter(|bytes| [1, 2, 4, 8].contains(bytes))?;
        Some(IdType { bytes, signed })
    }

    /// One more than the largest id. Signed numbers are read as unsigned too, so a negative one is above it.
    fn limit(self) -> u64 {
        match self {
            IdType { bytes: 8, .. } => 1 << 63,
            IdType { bytes, signed } => 1 << (8 * bytes - usize::from(signed)),
        }
    }

    /// The number that was written, from the unsigned one that was read.
    fn written(self, value: u64) -> i64 {
        let unused = 64 - 8 * self.bytes as u32;
        if self.signed { ((value << unused) as i64) >> unused } else { value as i64 }
    }
}

/// More ids than this are beyond any file offset.
const MAX_IDS: u64 = 1 << 56;

/// The ids of one split of one dataset: those of its shards, one after the other.
pub struct Tokens {
    folder: PathBuf,
    /// All names in one string: few allocations even for thousands of shards.
    names: String,
    /// Where in `names` each ends.
    name_ends: Vec<usize>,
    /// The index of the first id of each shard, followed by the total number.
    firsts: Vec<u64>,
    /// Bytes before the first id of a file.
    header: u64,
    id: IdType,
    /// The first id that is used.
    start: u64,
    /// Ids from one example to the next.
    stride: u64,
    /// The padding id of packed sequences; `None` for windows of a stream.
    pad_id: Option<i64>,
    end_id: Option<i64>,
    /// Every id must be below it.
    vocab_size: u64,
    /// The stamp of each shard when it was first checked.
    stamps: Vec<Option<Stamp>>,
}

/// The arguments of `Tokens::new`.
pub struct TokensSpec {
    pub folder: PathBuf,
    /// Name and ids of each shard.
    pub shards: Vec<(String, u64)>,
    pub header: u64,
    pub id: IdType,
    pub start: u64,
    pub stride: u64,
    pub pad_id: Option<i64>,
    pub end_id: Option<i64>,
    pub vocab_size: Option<u64>,
}

impl Tokens {
    /// Checks the size of every shard, so that one that is missing or truncated is reported now.
    pub fn new(spec: TokensSpec) -> Result<Tokens> {
        let mut tokens = Tokens {
            folder: spec.folder,
            names: String::new(),
            name_ends: Vec::with_capacity(spec.shards.len()),
            firsts: Vec::with_capacity(spec.shards.len() + 1),
            header: spec.header,
            id: spec.id,
            start: spec.start,
            stride: spec.stride,
            pad_id: spec.pad_id,
            end_id: spec.end_id,
            vocab_size: spec.vocab_size.map_or(spec.id.limit(), |size| size.min(spec.id.limit())),
            stamps: Vec::new(),
        };
        let mut first = 0;
        for (name, count) in spec.shards {
            tokens.names.push_str(&name);
            tokens.name_ends.push(tokens.names.len());
            tokens.firsts.push(first);
            first = u64::checked_add(first, count).filter(|all| *all <= MAX_IDS).ok_or_else(|| {
                let folder = tokens.folder.display();
                Error::Dataset(format!("{folder} is damaged: its shards claim more ids than fit on any disk"))
            })?;
        }
        tokens.firsts.push(first);
        tokens.names.shrink_to_fit();
        tokens.stamps =
            (0..tokens.name_ends.len()).map(|shard| tokens.check_size(shard)).collect::<Result<_>>()?;
        Ok(tokens)
    }

    fn path(&self, shard: usize) -> PathBuf {
        let start = shard.checked_sub(1).map_or(0, |before| self.name_ends[before]);
        self.folder.join(&self.names[start..self.name_ends[shard]])
    }

    fn check_size(&self, shard: usize) -> Result<Option<Stamp>> {
        let path = self.path(shard);
        let stamp = Stamp::at(&path).map_err(|error| unreadable(&path, error))?;
        let found = stamp.map_or(0, |stamp| stamp.size());
        let wanted = self.header + (self.firsts[shard + 1] - self.firsts[shard]) * self.id.bytes as u64;
        match found < wanted {
            true => Err(Error::Dataset(format!(
                "{} is damaged: it has {found} bytes instead of {wanted}; restore it from a copy, or prepare the data again",
                path.display()
            ))),
            false => Ok(stamp),
        }
    }

    /// Fails if a shard has changed: ids of two versions must not be mixed.
    fn check_same(&self, shard: usize, file: &File) -> Result<()> {
        let now = Stamp::of(file).map_err(|error| unreadable(&self.path(shard), error))?;
        match self.stamps[shard].zip(now).and_then(|(before, now)| before.difference(&now)) {
            Some(what) => Err(Error::Dataset(format!(
                "{} {what}: run the same command again, and do not change a dataset while it is being read",
                self.path(shard).display()
            ))),
            None => Ok(()),
        }
    }
}

/// The examples of all datasets of a loader.
pub struct Windows {
    datasets: Vec<Tokens>,
    files: Mutex<OpenFiles>,
    seq_len: usize,
}

impl Windows {
    pub fn new(datasets: Vec<Tokens>, seq_len: usize) -> Windows {
        Windows { datasets, files: Mutex::default(), seq_len }
    }

    /// Reads each window into its row. `rows` has as many rows as there are windows.
    pub fn read(&self, windows: impl Iterator<Item = Window>, rows: &mut Rows<'_>) -> Result<()> {
        let (mut bytes, mut ids) = (Vec::new(), Vec::new());
        for (number, Window { dataset, example, offset }) in windows.enumerate() {
            let tokens = &self.datasets[dataset];
            let length = self.seq_len + usize::from(tokens.pad_id.is_none());
            let first = tokens.start + example * tokens.stride + offset;
            bytes.resize(length * tokens.id.bytes, 0);
            ids.resize(length, 0);
            self.read_ids(dataset, first, &mut bytes, &mut ids)?;
            let text = match tokens.pad_id {
                Some(pad) if ids[length - 1] == pad => self.unpadded(dataset, first, pad, &ids)?,
                _ => length,
            };
            fill_row(&ids, text, tokens.end_id, &mut rows.row(number, self.seq_len));
        }
        Ok(())
    }

    fn read_ids(&self, dataset: usize, mut first: u64, bytes: &mut [u8], ids: &mut [i64]) -> Result<()> {
        let tokens = &self.datasets[dataset];
        let width = tokens.id.bytes;
        let mut shard = tokens.firsts.partition_point(|&start| start <= first) - 1;
        let mut done = 0;
        while done < ids.len() {
            let count = (ids.len() - done).min((tokens.firsts[shard + 1] - first) as usize);
            let part = &mut bytes[done * width..(done + count) * width];
            let offset = tokens.header + (first - tokens.firsts[shard]) * width as u64;
            let failed = |error| unreadable(&tokens.path(shard), error);
            let file =
                self.files.lock().unwrap().get((dataset, shard), || tokens.path(shard)).map_err(failed)?;
            file.read_exact_at(part, offset).map_err(failed)?;
            tokens.check_same(shard, &file)?;
            let largest = widen(part, width, &mut ids[done..done + count]);
            if largest >= tokens.vocab_size {
                return Err(id_out_of_range(&tokens.path(shard), tokens.id, largest, tokens.vocab_size));
            }
            done += count;
            first += count as u64;
            shard += 1;
        }
        Ok(())
    }

    /// How many of a packed sequence's ids are not padding, if the last one could be.
    ///
    /// With an end id, which is also the padding, every document with padding after it ends with that id: so the first
    /// of the trailing end ids belongs to the document. Without one, the index file is needed.
    fn unpadded(&self, dataset: usize, first: u64, pad: i64, ids: &[i64]) -> Result<usize> {
        let tokens = &self.datasets[dataset];
        if tokens.end_id.is_some() {
            let text = ids.iter().rposition(|&id| id != pad).map_or(0, |place| place + 1);
            return Ok((text + 1).min(ids.len()));
        }
        let shard = tokens.firsts.partition_point(|&start| start <= first) - 1;
        let path = tokens.path(shard).with_extension("idx");
        let failed = |error| unreadable(&path, error);
        let file = own_files::open(&path).map_err(failed)?;
        let begin = first - tokens.firsts[shard];
        // The last end within this sequence: by binary search in the file, as the index is never loaded.
        let end_at = |piece: u64| -> Result<u64> {
            let mut end = [0; 8];
            file.read_exact_at(&mut end, piece * 8).map_err(failed)?;
            Ok(u64::from_le_bytes(end))
        };
        let (mut low, mut high) = (0, file.metadata().map_err(failed)?.len() / 8);
        while low < high {
            let middle = low + (high - low) / 2;
            if end_at(middle)? <= begin + ids.len() as u64 {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let last = if low == 0 { 0 } else { end_at(low - 1)? };
        if last <= begin {
            return Err(Error::Dataset(format!(
                "{} is damaged: no document ends in the sequence at {begin}; run `ramlet data verify` for details",
                path.display()
            )));
        }
        Ok((last - begin) as usize)
    }
}

/// Converts the bytes to unsigned numbers; returns the largest.
fn widen(bytes: &[u8], width: usize, ids: &mut [i64]) -> u64 {
    macro_rules! as_type {
        ($type:ty) => {{
            let mut largest: $type = 0;
            for (id, bytes) in ids.iter_mut().zip(bytes.chunks_exact(size_of::<$type>())) {
                let value = <$type>::from_le_bytes(bytes.try_into().expect("chunks of this size"));
                largest = largest.max(value);
                *id = value as i64;
            }
            largest as u64
        }};
    }
    match width {
        1 => as_type!(u8),
        2 => as_type!(u16),
        4 => as_type!(u32),
        _ => as_type!(u64),
    }
}

fn id_out_of_range(path: &std::path::Path, id: IdType, value: u64, vocab_size: u64) -> Error {
    let (path, value) = (path.display(), id.written(value));
    Error::Dataset(match value < 0 {
        true => format!("{path} has a negative id ({value}): it is damaged, or not a file of token ids"),
        false => format!(
            "{path} has the id {value}, outside the vocabulary of {vocab_size}: it is damaged, or from another tokenizer; run `ramlet data verify` for details"
        ),
    })
}

fn unreadable(path: &std::path::Path, error: std::io::Error) -> Error {
    use std::io::ErrorKind::{NotFound, UnexpectedEof};
    let path = path.display();
    Error::Dataset(match error.kind() {
        NotFound => format!("{path} is missing: run `ramlet data verify` for details"),
        UnexpectedEof => format!("{path} is damaged: it is shorter than when it was opened"),
        _ => format!("cannot read {path}: {error}"),
    })
}
