//! Files that are kept open between reads, a bounded number of them.

use crate::own_files;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Opening takes about ten times as long as a read; more open files than this would affect other programs.
pub const MAX_OPEN: usize = 128;

/// (dataset, shard)
type Name = (usize, usize);

#[derive(Default)]
pub struct OpenFiles {
    files: HashMap<Name, (Arc<File>, u64)>,
    uses: u64,
}

impl OpenFiles {
    pub fn get(&mut self, name: Name, path: impl Fn() -> PathBuf) -> io::Result<Arc<File>> {
        self.uses += 1;
        if let Some((file, used)) = self.files.get_mut(&name) {
            *used = self.uses;
            return Ok(file.clone());
        }
        self.close_oldest(MAX_OPEN);
        let file = match own_files::open(&path()) {
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
                // The process may have a lower limit.
                self.files.clear();
                own_files::open(&path())
            }
            opened => opened,
        };
        let file = Arc::new(file?);
        self.files.insert(name, (file.clone(), self.uses));
        Ok(file)
    }

    fn close_oldest(&mut self, most: usize) {
        while self.files.len() >= most {
            let oldest = self.files.iter().min_by_key(|(_, (_, used))| *used).map(|(name, _)| *name);
            self.files.remove(&oldest.expect("the map is not empty"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |number: usize| folder.path().join(number.to_string());
        let mut open = OpenFiles::default();
        for number in 0..MAX_OPEN + 1 {
            std::fs::write(path(number), "x").unwrap();
            open.get((0, number), || path(number)).unwrap();
            open.get((0, 0), || unreachable!("open")).unwrap();
        }
        assert_eq!(open.files.len(), MAX_OPEN);
        assert!(!open.files.contains_key(&(0, 1)));
        assert!(open.files.contains_key(&(0, 0)));
    }
}
