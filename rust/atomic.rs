//! Files that exist complete or not at all: temporary name, sync, rename.

use crate::error::{Error, Result};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// The ending of what a killed run may leave; the next run of the same work overwrites it.
pub const TEMPORARY: &str = ".ramlet-tmp";
const BUFFER: usize = 64 << 10;

/// A file being written. Dropped without `commit`, it leaves nothing.
pub struct NewFile {
    path: PathBuf,
    temporary: PathBuf,
    file: Option<BufWriter<File>>,
}

impl NewFile {
    pub fn create(path: &Path) -> Result<NewFile> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = path.with_file_name(format!(".{name}{TEMPORARY}"));
        let file = File::create(&temporary).map_err(|error| Error::write(&temporary, error))?;
        Ok(NewFile { path: path.to_owned(), temporary, file: Some(BufWriter::with_capacity(BUFFER, file)) })
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let file = self.file.as_mut().expect("not committed yet");
        file.write_all(bytes).map_err(|error| Error::write(&self.path, error))
    }

    /// Syncs the file and gives it its name. Syncing the folder is left to the caller.
    pub fn commit(mut self) -> Result<()> {
        let file = self.file.take().expect("committed once");
        file.into_inner()
            .map_err(io::IntoInnerError::into_error)
            .and_then(|file| file.sync_all())
            .and_then(|()| std::fs::rename(&self.temporary, &self.path))
            .map_err(|error| Error::write(&self.path, error))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// Writes a small file and syncs its folder: when this returns, the file is durable.
pub fn commit_note(path: &Path, text: &[u8]) -> Result<()> {
    let mut file = NewFile::create(path)?;
    file.write(text)?;
    file.commit()?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

/// Creates a folder and its parents, unless it is there already.
pub fn create_folder(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|error| Error::write(folder, error))
}

/// Makes renames in a folder survive a power loss.
pub fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| Error::write(folder, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_complete_or_absent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let mut file = NewFile::create(&path).unwrap();
        file.write(b"half").unwrap();
        drop(file);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        commit_note(&path, b"whole").unwrap();
        commit_note(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
