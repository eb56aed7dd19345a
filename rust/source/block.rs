//! What a worker gets: some text, and the documents or parts of documents in it.

/// Zeroed bytes after the end of `Block::text` that may be read: a 16-byte load at any piece stays within the buffer.
pub const SPARE: usize = 32;

/// A worker keeps one `Block` that is refilled; its memory is reused.
#[derive(Default)]
pub struct Block {
    /// Valid UTF-8. May have more than the fragments cover (separators, line ends): only what is in a fragment is text
    /// of a document. Has at least `SPARE` zeroed bytes of capacity after its end.
    pub text: String,
    /// In the order of the text, without overlaps. A block may have no fragments at all.
    pub fragments: Vec<Fragment>,
    /// The text is from a text file that is one document. (All fragments of a block are from the same file.)
    pub whole_file: bool,
    /// Lines read from a file under its lane's lock, to be parsed without it.
    pub(super) lines: Vec<u8>,
}

/// A document, or a part of one that is larger than a block.
///
/// An empty document is counted but has no fragment; an empty fragment only marks the end of a document whose earlier
/// parts were returned before. So joining the fragments of each (file, document) gives every document that is not
/// empty, exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    pub start: usize,
    pub end: usize,
    /// Index of the file, or part of a file, in the order they were given, from 0.
    pub file: u64,
    /// Index within the file or part, from 0: of the document in text, of the line in jsonl, of the row in parquet.
    pub document: u64,
    pub ends_document: bool,
}

impl Block {
    pub fn new() -> Block {
        Block::default()
    }

    /// The fragments with their text.
    pub fn iter(&self) -> impl Iterator<Item = (&Fragment, &str)> {
        self.fragments.iter().map(|fragment| (fragment, &self.text[fragment.start..fragment.end]))
    }

    /// Empties the block, and frees its memory if an unusually large block had made it grow.
    pub(super) fn begin(&mut self, block_bytes: usize) {
        let usual = 2 * (block_bytes + SPARE);
        self.fragments.clear();
        if self.text.capacity() > usual {
            self.text = String::new();
        }
        if self.lines.capacity() > usual {
            self.lines = Vec::new();
        }
    }

    /// Makes the spare bytes readable.
    pub(super) fn seal(&mut self) {
        self.text.reserve(SPARE);
        // SAFETY: only capacity beyond the length is written, so the text does not change.
        let bytes = unsafe { self.text.as_mut_vec() };
        for byte in &mut bytes.spare_capacity_mut()[..SPARE] {
            byte.write(0);
        }
    }
}
