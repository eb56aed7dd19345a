//! The distinct pieces with their counts and current symbols, in small chunks: in memory as far as the share allows,
//! the rest in one file. A pass calls a closure with every piece, chunk by chunk on all threads, and can store the
//! changed symbols.
//!
//! A chunk is a sequence of records: varint count, varint number of symbols, varint symbols. Common symbols take one or
//! two bytes, so a piece of natural text takes about 13 bytes in total.

use crate::alphabet::IDS;
use crate::crew::{Progress, Watch, crew};
use crate::error::{Error, Result};
use crate::varint;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Small, so that the chunks that all threads write at once in a pass stay small too.
const CHUNK: usize = 64 << 10;

enum Chunk {
    Memory(Vec<u8>),
    Disk { offset: u64, length: usize },
}

pub struct PieceStore {
    chunks: Vec<Mutex<Chunk>>,
    memory: AtomicUsize,
    memory_share: usize,
    file: Scratch,
}

/// A file without a name: however the process ends, nothing is left on disk.
struct Scratch {
    folder: PathBuf,
    file: Option<File>,
    end: AtomicU64,
}

impl Scratch {
    fn new(folder: &Path) -> Self {
        Scratch { folder: folder.to_owned(), file: None, end: AtomicU64::new(0) }
    }

    fn open(&mut self) -> Result<()> {
        if self.file.is_none() {
            let path = self.folder.join("pieces.tmp");
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
            self.file = Some(file.map_err(|error| Error::write(&path, error))?);
            std::fs::remove_file(&path).map_err(|error| Error::io(&path, error))?;
        }
        Ok(())
    }

    fn append(&self, bytes: &[u8]) -> Result<u64> {
        let offset = self.end.fetch_add(bytes.len() as u64, Relaxed);
        let file = self.file.as_ref().expect("opened before the first write");
        file.write_all_at(bytes, offset).map_err(|error| Error::write(&self.folder, error))?;
        Ok(offset)
    }

    fn read(&self, offset: u64, length: usize, into: &mut Vec<u8>) -> Result<()> {
        into.resize(length, 0);
        let file = self.file.as_ref().expect("a chunk on disk has a file");
        file.read_exact_at(into, offset).map_err(|error| Error::io(&self.folder, error))
    }
}

impl PieceStore {
    pub fn new(folder: &Path, memory_share: usize) -> Result<Self> {
        let mut file = Scratch::new(folder);
        file.open()?;
        Ok(PieceStore { chunks: Vec::new(), memory: AtomicUsize::new(0), memory_share, file })
    }

    fn place(&self, file: &Scratch, bytes: &[u8]) -> Result<Chunk> {
        let grown = self.memory.fetch_add(bytes.len(), Relaxed) + bytes.len();
        if grown <= self.memory_share {
            return Ok(Chunk::Memory(bytes.to_vec()));
        }
        self.memory.fetch_sub(bytes.len(), Relaxed);
        Ok(Chunk::Disk { offset: file.append(bytes)?, length: bytes.len() })
    }

    pub fn push(&mut self, builder: &mut ChunkBuilder) -> Result<()> {
        if !builder.bytes.is_empty() {
            let chunk = self.place(&self.file, &builder.bytes)?;
            self.chunks.push(Mutex::new(chunk));
            builder.bytes.clear();
        }
        Ok(())
    }

    /// Calls `each(state, symbols, count)` with every piece, from chunk `next` to the last or until `stop` is set (a
    /// chunk is processed completely or not at all). With `rewrite`, the symbols as changed by `each` are stored; a
    /// piece of only one symbol is finished and removed.
    #[allow(clippy::too_many_arguments)]
    pub fn pass<S: Send>(
        &mut self,
        threads: usize,
        progress: &Progress,
        watch: &mut Watch<'_>,
        rewrite: bool,
        next: &AtomicUsize,
        stop: &AtomicBool,
        start: impl Fn() -> S + Sync,
        each: impl Fn(&mut S, &mut Vec<u32>, u64) + Sync,
    ) -> Result<()> {
        let mut target = Scratch::new(&self.file.folder);
        if rewrite && self.chunks.iter_mut().any(|chunk| matches!(chunk.get_mut(), Ok(Chunk::Disk { .. }))) {
            target.open()?;
        }
        let (store, target_file) = (&*self, &target);
        crew(threads, progress, watch, |_| {
            let mut state = start();
            let (mut symbols, mut read, mut written) = (Vec::new(), Vec::new(), Vec::new());
            while !stop.load(Relaxed) {
                let Some(chunk) = store.chunks.get(next.fetch_add(1, Relaxed)) else {
                    break;
                };
                progress.check()?;
                let mut chunk = chunk.lock().unwrap();
                let bytes = match &*chunk {
                    Chunk::Memory(bytes) => bytes.as_slice(),
                    Chunk::Disk { offset, length } => {
                        store.file.read(*offset, *length, &mut read)?;
                        read.as_slice()
                    }
                };
                written.clear();
                let mut at = 0;
                while at < bytes.len() {
                    let count = varint::get(bytes, &mut at);
                    let length = varint::get(bytes, &mut at);
                    symbols.clear();
                    symbols.extend((0..length).map(|_| varint::get(bytes, &mut at) as u32));
                    each(&mut state, &mut symbols, count);
                    if rewrite && symbols.len() > 1 {
                        put_record(&mut written, symbols.iter().copied(), count);
                    }
                }
                if rewrite {
                    *chunk = match &*chunk {
                        Chunk::Memory(old) => {
                            store.memory.fetch_sub(old.len(), Relaxed);
                            store.memory.fetch_add(written.len(), Relaxed);
                            Chunk::Memory(written.as_slice().to_vec())
                        }
                        Chunk::Disk { .. } => store.place(target_file, &written)?,
                    };
                }
            }
            Ok(())
        })?;
        if target.file.is_some() {
            self.file = target;
        }
        Ok(())
    }
}

fn put_record(out: &mut Vec<u8>, symbols: impl ExactSizeIterator<Item = u32>, count: u64) {
    varint::put(out, count);
    varint::put(out, symbols.len() as u64);
    symbols.for_each(|symbol| varint::put(out, u64::from(symbol)));
}

/// Collects records into a chunk.
#[derive(Default)]
pub struct ChunkBuilder {
    bytes: Vec<u8>,
}

impl ChunkBuilder {
    /// Adds a piece as it is in the text. Pieces of one byte have nothing to merge.
    pub fn add(&mut self, piece: &[u8], count: u64) {
        if piece.len() > 1 {
            put_record(&mut self.bytes, piece.iter().map(|&byte| u32::from(IDS[byte as usize])), count);
        }
    }

    pub fn is_full(&self) -> bool {
        self.bytes.len() >= CHUNK
    }
}
