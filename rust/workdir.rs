//! The folder that holds the runs of a count and the notes from which an interrupted one goes on.
//!
//! The notes name every run that counts and the place in the sources up to which they count; they are
//! replaced in one step. A run that no notes name was written after them: its text will be read
//! again, so it is removed.

use crate::count::Totals;
use crate::error::{Error, Result};
use crate::spill::Run;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use xxhash_rust::xxh3::xxh3_64;

const NOTES: &str = "counts.json";
const LOCK: &str = "lock";

#[derive(Serialize, Deserialize)]
pub struct Notes {
    /// Of the inputs and of every setting that a count depends on.
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

    /// Notes as they were written, or none: a changed digit would change the result.
    fn read(path: &Path) -> Option<Notes> {
        let notes: Notes = serde_json::from_slice(&crate::own_files::read(path).ok()?).ok()?;
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
    /// Held while the folder is in use; the system lets go of it however the process ends.
    _lock: File,
}

impl WorkDir {
    pub fn open(path: &Path, signature: &str) -> Result<Self> {
        std::fs::create_dir_all(path).map_err(|error| Error::write(path, error))?;
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

    /// Removes what the notes do not name; without notes, everything of ours.
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
            let ours =
                name.ends_with(".run") || name.ends_with(".tmp") || (name == NOTES && self.notes.is_none());
            if ours && !named(&name) {
                std::fs::remove_file(entry.path()).map_err(io)?;
            }
        }
        Ok(())
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
        let path = self.path.join(NOTES);
        let temporary = self.path.join("counts.tmp");
        let text = serde_json::to_string(notes).expect("notes are plain data");
        File::create(&temporary)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
            .and_then(|()| std::fs::rename(&temporary, &path))
            .and_then(|()| File::open(&self.path)?.sync_all())
            .map_err(|error| Error::write(&path, error))
    }
}
