//! Texts of documents, read back from the tokens of their tasks.

use super::places::{Place, Places};
use super::places_path;
use crate::error::{Error, Result};
use crate::near::shingles::Shingler;
use crate::own_files::{self, damaged};
use crate::prepare::write::split_of;
use crate::prepare::{Job, Split, tokens};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use xxhash_rust::xxh3::Xxh3;

/// Appends the bytes of ids.
type Decode<'a> = dyn Fn(&[u32], &mut Vec<u8>) -> Result<()> + Sync + 'a;

/// Ids -> the bytes of their text.
pub struct Decoding<'a> {
    pub decode: &'a Decode<'a>,
    /// Whether the ids of a document can be decoded a few at a time.
    pub in_parts: bool,
}

/// Ids that are decoded at a time.
const PART: usize = 16 << 10;

impl Decoding<'_> {
    /// Appends the text of a document's ids. They are collected in `part`; `finish` appends what is left of them.
    pub fn append(
        &self,
        ids: impl Iterator<Item = u32>,
        text: &mut Vec<u8>,
        part: &mut Vec<u32>,
    ) -> Result<()> {
        for id in ids {
            part.push(id);
            if self.in_parts && part.len() == PART {
                self.finish(text, part)?;
            }
        }
        Ok(())
    }

    pub fn finish(&self, text: &mut Vec<u8>, part: &mut Vec<u32>) -> Result<()> {
        if !part.is_empty() {
            (self.decode)(part, text)?;
            part.clear();
        }
        Ok(())
    }
}

/// What is not UTF-8, such as part of a character, becomes U+FFFD.
pub fn as_text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    match simdutf8::basic::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => String::from_utf8_lossy(bytes),
    }
}

/// The files of tasks that one reader has open.
const OPEN: usize = 8;

/// Reads documents in any order.
pub struct Texts<'a> {
    job: &'a Job,
    decoding: &'a Decoding<'a>,
    /// The last one used is the last.
    open: Vec<OpenTask>,
    shingler: Shingler,
    bytes: Vec<u8>,
    ids: Vec<u32>,
    text: Vec<u8>,
}

struct OpenTask {
    task: u32,
    places: Places,
    /// The ids and the ends of each split.
    files: [Option<[TokenFile; 2]>; 2],
}

struct TokenFile {
    file: File,
    path: PathBuf,
}

impl TokenFile {
    fn open(job: &Job, task: u32, split: Split, ending: &str) -> Result<TokenFile> {
        let path = tokens::path(job, task, split, ending);
        let file = own_files::open(&path).map_err(|error| Error::io(&path, error))?;
        Ok(TokenFile { file, path })
    }

    fn read(&self, bytes: &mut [u8], at: u64) -> Result<()> {
        self.file.read_exact_at(bytes, at).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => damaged(&self.path),
            _ => Error::io(&self.path, error),
        })
    }
}

impl<'a> Texts<'a> {
    pub fn new(job: &'a Job, decoding: &'a Decoding<'a>) -> Texts<'a> {
        Texts {
            job,
            decoding,
            open: Vec::new(),
            shingler: Shingler::default(),
            bytes: Vec::new(),
            ids: Vec::new(),
            text: Vec::new(),
        }
    }

    fn opened(&mut self, task: u32) -> Result<&mut OpenTask> {
        match self.open.iter().position(|open| open.task == task) {
            Some(at) => self.open[at..].rotate_left(1),
            None => {
                if self.open.len() == OPEN {
                    self.open.remove(0);
                }
                let places = Places::open(&places_path(self.job, task))?;
                self.open.push(OpenTask { task, places, files: [None, None] });
            }
        }
        Ok(self.open.last_mut().expect("just used"))
    }

    pub fn place(&mut self, task: u32, index: u32) -> Result<Place> {
        self.opened(task)?.places.get(index)
    }

    /// The text of a document. One that cleaning made longer than any as read is read by one thread at a time.
    pub fn text(&mut self, task: u32, index: u32) -> Result<std::borrow::Cow<'_, str>> {
        let place = self.place(task, index)?;
        self.read(task, &place)?;
        Ok(as_text(&self.text))
    }

    /// The shingles of a document, ascending.
    pub fn set(&mut self, task: u32, index: u32) -> Result<Vec<u64>> {
        let place = self.place(task, index)?;
        let job = self.job;
        let grown = place.bytes as usize > job.plan.largest_document();
        let _alone = grown.then(|| job.grown.lock().unwrap());
        self.read(task, &place)?;
        let mut set = self.shingler.set(&as_text(&self.text));
        set.shrink_to_fit();
        if grown {
            self.text = Vec::new();
        }
        Ok(set)
    }

    /// The lengths of a document's pieces in tokens, without their end tokens.
    pub fn piece_lengths(&mut self, task: u32, place: &Place) -> Result<Vec<u64>> {
        let end = u64::from(self.job.plan.end_id.is_some());
        let ends = self.ends(task, place)?;
        Ok(ends.windows(2).map(|two| (two[1] - two[0]).saturating_sub(end)).collect())
    }

    /// Where the document starts, and where each of its pieces ends.
    fn ends(&mut self, task: u32, place: &Place) -> Result<Vec<u64>> {
        let (job, split) = (self.job, split_of(&self.job.plan, place.hash));
        let open = self.opened(task)?;
        let [_, ends] = open.files(job, split)?;
        let before = u64::from(place.first > 0);
        let mut bytes = vec![0; (before as usize + place.pieces as usize) * 8];
        ends.read(&mut bytes, (u64::from(place.first) - before) * 8)?;
        let start = if before == 0 { Some(0) } else { None };
        let read = bytes.chunks_exact(8).map(|end| u64::from_le_bytes(end.try_into().unwrap()));
        let all: Vec<u64> = start.into_iter().chain(read).collect();
        if all.is_sorted() { Ok(all) } else { Err(damaged(&ends.path)) }
    }

    /// Reads the text of a document.
    fn read(&mut self, task: u32, place: &Place) -> Result<()> {
        let ends = self.ends(task, place)?;
        let (job, decoding, split) = (self.job, self.decoding, split_of(&self.job.plan, place.hash));
        let (width, end) = (job.plan.width(), usize::from(job.plan.end_id.is_some()));
        let (mut bytes, mut text) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.text));
        let mut part = std::mem::take(&mut self.ids);
        text.clear();
        let mut digest = Xxh3::new();
        let [ids, _] = self.opened(task)?.files(job, split)?;
        part.clear();
        // Damaged ids may have no text: the checksum is what to tell.
        let mut decoded = Ok(());
        for two in ends.windows(2) {
            let (mut at, last) = (two[0], two[1].saturating_sub(end as u64));
            while at < two[1] {
                let some = (two[1] - at).min(PART as u64);
                bytes.resize(some as usize * width, 0);
                ids.read(&mut bytes, at * width as u64)?;
                digest.update(&bytes);
                let own = last.saturating_sub(at).min(some) as usize * width;
                let ids = numbers(&bytes[..own], width);
                decoded = decoded.and_then(|()| decoding.append(ids, &mut text, &mut part));
                at += some;
            }
        }
        decoded = decoded.and_then(|()| decoding.finish(&mut text, &mut part));
        if digest.digest() as u32 != place.check {
            return Err(damaged(&ids.path));
        }
        decoded?;
        (self.bytes, self.text, self.ids) = (bytes, text, part);
        Ok(())
    }
}

fn numbers(bytes: &[u8], width: usize) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(width).map(move |id| match width {
        2 => u32::from(u16::from_le_bytes(id.try_into().unwrap())),
        _ => u32::from_le_bytes(id.try_into().unwrap()),
    })
}

impl OpenTask {
    fn files(&mut self, job: &Job, split: Split) -> Result<&[TokenFile; 2]> {
        let files = &mut self.files[split as usize];
        if files.is_none() {
            let open = |ending| TokenFile::open(job, self.task, split, ending);
            *files = Some([open("ids")?, open("ends")?]);
        }
        Ok(files.as_ref().expect("just opened"))
    }
}
