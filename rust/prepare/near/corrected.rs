//! The note of a task, as if the dropped documents had never been written.

use super::bits::DroppedBits;
use super::dropped::Drop;
use super::places::{Place, Places};
use super::places_path;
use super::texts::Texts;
use crate::clean::Rule;
use crate::error::Result;
use crate::own_files;
use crate::prepare::ledger::{EXAMPLE_CHARACTERS, EXAMPLES};
use crate::prepare::tokens::{Candidate, TaskTokens};
use crate::prepare::write::split_of;
use crate::prepare::{Job, Split};
use crate::tasks::Task;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Pairs that are shown of the whole run, and so the most that are kept of a task.
pub const SHOWN_PAIRS: usize = 200;

/// A pair that may be shown; those with the least hashes are.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct Shown {
    /// Of the dropped document.
    pub hash: u64,
    pub index: u32,
    pub kept: u64,
    pub similarity: f64,
}

/// What the dropped documents of a task were counted as.
#[derive(Default)]
pub struct Corrections {
    documents: u64,
    /// By split.
    pieces: [u64; 2],
    tokens: [u64; 2],
    bytes: u64,
    characters: u64,
    lengths: Vec<u64>,
    examples: Vec<Value>,
    shown: Vec<Shown>,
}

impl Corrections {
    /// Counts a dropped document; returns its place.
    pub fn add(&mut self, job: &Job, task: u32, drop: &Drop, texts: &mut Texts<'_>) -> Result<Place> {
        let place = texts.place(task, drop.index)?;
        let split = split_of(&job.plan, place.hash) as usize;
        let end = u64::from(job.plan.end_id.is_some());
        self.documents += 1;
        self.pieces[split] += u64::from(place.pieces);
        self.bytes += u64::from(place.bytes);
        self.characters += u64::from(place.characters);
        for length in texts.piece_lengths(task, &place)? {
            self.tokens[split] += length + end;
            let power = length.max(1).ilog2() as usize;
            self.lengths.resize(self.lengths.len().max(power + 1), 0);
            self.lengths[power] += 1;
        }
        if self.examples.len() < EXAMPLES {
            let text: String = texts.text(task, drop.index)?.chars().take(EXAMPLE_CHARACTERS).collect();
            let file = source(job, task, place.file)?;
            self.examples.push(json!({"file": file, "document": place.document, "text": text}));
        }
        let (hash, index) = (place.hash, drop.index);
        let shown = Shown { hash, index, kept: drop.kept.number(), similarity: drop.similarity };
        let at = self.shown.partition_point(|other| (other.hash, other.index) < (hash, index));
        self.shown.insert(at, shown);
        self.shown.truncate(SHOWN_PAIRS);
        Ok(place)
    }

    /// The note that the task's tokens have, corrected.
    pub fn note(self, job: &Job, task: u32, bits: &DroppedBits) -> Result<Value> {
        let path = job.note("tokens", task);
        let mut note: Value = own_files::read_json(&path)?;
        let tokens: TaskTokens = own_files::read_json(&path)?;
        let pieces = self.pieces[0] + self.pieces[1];
        for split in Split::ALL {
            let mut written = tokens.of(split);
            written.documents = written.documents.saturating_sub(self.pieces[split as usize]);
            written.tokens = written.tokens.saturating_sub(self.tokens[split as usize]);
            note[split.name()] = json!(written);
        }
        if self.documents > 0 {
            let [candidate, last_val] = candidates(job, task, bits)?;
            note["candidate"] = json!(candidate);
            note["last_val"] = json!(last_val);
        }
        let rule = Rule::NearDuplicate.facts().name;
        let ledger = &mut note["ledger"];
        less(&mut ledger["documents"]["kept"], pieces);
        less(&mut ledger["documents"]["cut"], pieces - self.documents);
        ledger["documents"]["dropped"][rule] = json!(self.documents);
        less(&mut ledger["bytes"]["kept"], self.bytes);
        ledger["bytes"]["dropped"][rule] = json!(self.bytes);
        less(&mut ledger["characters"], self.characters);
        less(&mut ledger["end_ids"], if job.plan.end_id.is_some() { pieces } else { 0 });
        if let Some(lengths) = note["lengths"].as_array_mut() {
            for (length, count) in lengths.iter_mut().zip(&self.lengths) {
                less(length, *count);
            }
        }
        if !self.examples.is_empty() {
            note["examples"][rule] = json!(self.examples);
        }
        note["near"] = json!(self.shown);
        Ok(note)
    }
}

fn less(count: &mut Value, by: u64) {
    *count = json!(count.as_u64().unwrap_or(0).saturating_sub(by));
}

/// The documents of a task that would be moved to the other split first, among those that are kept.
fn candidates(job: &Job, task: u32, bits: &DroppedBits) -> Result<[Option<Candidate>; 2]> {
    let mut places = Places::open(&places_path(job, task))?;
    let (mut candidate, mut last_val): (Option<Candidate>, Option<Candidate>) = (None, None);
    for index in 0..bits.documents(task) as u32 {
        if bits.has(task, index) {
            continue;
        }
        let Place { hash, first, pieces, .. } = places.get(index)?;
        let this = Candidate { hash, document: u64::from(first), pieces: u64::from(pieces) };
        match split_of(&job.plan, hash) {
            Split::Train => candidate = candidate.into_iter().chain([this]).min(),
            Split::Val => last_val = last_val.into_iter().chain([this]).max(),
        }
    }
    Ok([candidate, last_val])
}

/// The path of a file of a task.
pub fn source(job: &Job, task: u32, file: u32) -> Result<String> {
    let mut files = Task::load(&job.work.join("inputs"), task)?.files();
    for _ in 0..file {
        files()?;
    }
    Ok(files()?.map_or_else(String::new, |spec| spec.path.to_string_lossy().into_owned()))
}
