//! What a worker gets: one stretch of text and the documents, or parts of documents, in it.

/// Bytes past the end of `Block::text` that may be read (they are zero): a 16-byte load at any piece stays inside.
pub const SPARE: usize = 32;

/// A worker keeps one `Block` and has it filled again and again; its memory is reused.
#[derive(Default)]
pub struct Block {
    /// Valid UTF-8. May hold more than the fragments cover (separators, line ends): only what a fragment
    /// names is text of a document. Has at least `SPARE` zeroed bytes of capacity after its end.
    pub text: String,
    /// In the order of the text; none overlaps another. A block may hold no fragment at all.
    pub fragments: Vec<Fragment>,
    /// The text is of one text file that is one document. (All fragments of a block are of the same file.)
    pub whole_file: bool,
    /// Lines taken from a file under its lane's lock, to be parsed outside it.
    pub(super) lines: Vec<u8>,
}

/// A document, or a part of one that is larger than a block.
///
/// An empty document is counted but has no fragment; an empty fragment only occurs to say that a document whose
/// earlier parts were handed out has ended. So joining the fragments of each (file, document) gives every
/// document that is not empty, exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    pub start: usize,
    pub end: usize,
    /// Ordinal of the file, or part of a file, in the order they were given, from 0.
    pub file: u64,
    /// Ordinal within the file or part, from 0: of the document in text, of the line in jsonl, of the row in parquet.
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

    /// Empties the block, and gives back what an unusually large block before had grown it by.
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
        // SAFETY: only capacity beyond the length is written, so the text stays what it was.
        let bytes = unsafe { self.text.as_mut_vec() };
        for byte in &mut bytes.spare_capacity_mut()[..SPARE] {
            byte.write(0);
        }
    }
}
