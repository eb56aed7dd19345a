//! The folder with the runs of a count and the notes from which an interrupted one resumes.
//!
//! The notes list every valid run and the position in the sources up to which they count; they are replaced atomically.
//! A run that is not listed was written after the notes: its text will be read again, so it is removed.

use crate::atomic::{TEMPORARY, commit_note, create_folder};
use crate::count::Totals;
use crate::error::{Error, Result};
use crate::spill::Run;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use xxhash_rust::xxh3::xxh3_64;

const NOTES: &str = "counts.json";
const LOCK: &str = "lock";

#[derive(Serialize, Deserialize)]
pub struct Notes {
    /// Of the inputs and every setting that a count depends on.
    signature: String,
    pub runs: Vec<String>,
    pub position: Option<String>,
    pub totals: Totals,
    pub done: bool,
    /// xxh3 of the notes with this field empty.
    checksum: String,
}

impl Notes {
    pub fn new(folder: &WorkDir, position: Option<String>, totals: Totals, done: bool) -> Self {
        let runs = folder.runs.lock().unwrap();
        let name = |run: &Run| run.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Notes {
            signature: folder.signature.clone(),
            runs: runs.iter().map(name).collect(),
            position,
            totals,
            done,
            checksum: String::new(),
        }
        .sealed()
    }

    fn sealed(mut self) -> Self {
        self.checksum.clear();
        let text = serde_json::to_string(&self).expect("notes are plain data");
        self.checksum = format!("{:016x}", xxh3_64(text.as_bytes()));
        self
    }

    /// `None` if the notes are missing or damaged: a changed digit would change the result.
    fn read(path: &Path) -> Option<Notes> {
        let notes: Notes = crate::own_files::read_json(path).ok()?;
        let checksum = notes.checksum.clone();
        Some(notes.sealed()).filter(|notes| notes.checksum == checksum)
    }
}

pub struct WorkDir {
    path: PathBuf,
    signature: String,
    notes: Option<Notes>,
    runs: Mutex<Vec<Run>>,
    next: AtomicU64,
    /// Locked while the folder is in use; the system releases it however the process ends.
    _lock: File,
}

impl WorkDir {
    pub fn open(path: &Path, signature: &str) -> Result<Self> {
        create_folder(path)?;
        let lock_path = path.join(LOCK);
        let lock = File::create(&lock_path).map_err(|error| Error::write(&lock_path, error))?;
        if lock.try_lock().is_err() {
            return Err(Error::Invalid(format!(
                "{} is in use by another run: wait for it or choose another output folder",
                path.display()
            )));
        }
        let notes = Notes::read(&path.join(NOTES)).filter(|notes| notes.signature == signature);
        let folder = WorkDir {
            path: path.to_owned(),
            signature: signature.to_owned(),
            notes,
            runs: Mutex::new(Vec::new()),
            next: AtomicU64::new(0),
            _lock: lock,
        };
        folder.sweep()?;
        Ok(folder)
    }

    /// Removes what the notes do not list; without notes, all files of ours.
    fn sweep(&self) -> Result<()> {
        let named =
            |name: &str| self.notes.as_ref().is_some_and(|notes| notes.runs.iter().any(|run| run == name));
        let io = |error| Error::io(&self.path, error);
        for entry in std::fs::read_dir(&self.path).map_err(io)? {
            let entry = entry.map_err(io)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Some(number) = name.strip_suffix(".run").and_then(|number| number.parse::<u64>().ok()) {
                self.next.fetch_max(number + 1, Relaxed);
            }
            let ours = [".run", ".tmp", TEMPORARY].iter().any(|ending| name.ends_with(ending))
                || (name == NOTES && self.notes.is_none());
            if ours && !named(&name) {
                std::fs::remove_file(entry.path()).map_err(io)?;
            }
        }
        Ok(())
    }

    /// Whether the lock is still in the folder.
    pub fn has_lock(&self) -> bool {
        self.path.join(LOCK).exists()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn notes(&self) -> Option<&Notes> {
        self.notes.as_ref()
    }

    pub fn new_run(&self) -> PathBuf {
        self.path.join(format!("{:06}.run", self.next.fetch_add(1, Relaxed)))
    }

    pub fn add_run(&self, run: Run) {
        self.runs.lock().unwrap().push(run);
    }

    pub fn has_runs(&self) -> bool {
        !self.runs.lock().unwrap().is_empty()
    }

    pub fn take_runs(&self) -> Vec<Run> {
        std::mem::take(&mut self.runs.lock().unwrap())
    }

    pub fn write_notes(&self, notes: &Notes) -> Result<()> {
        let text = serde_json::to_string(notes).expect("notes are plain data");
        commit_note(&self.path.join(NOTES), text.as_bytes())
    }
}
