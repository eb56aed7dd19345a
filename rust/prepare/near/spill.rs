//! What writing a task leaves for comparing its documents: the keys of their bands, and where they are.

use super::places::{Place, PlaceWriter};
use super::texts::{Decoding, as_text};
use super::{bands_path, places_path};
use crate::dedup::grid::commit;
use crate::error::Result;
use crate::near::Near;
use crate::near::band_records::BandWriter;
use crate::near::shingles::Shingler;
use crate::near::signature::Signature;
use crate::prepare::{BufferSizes, Job, LARGEST_RECORDS};
use std::path::PathBuf;

pub struct NearSpill<'a> {
    near: Near,
    decoding: &'a Decoding<'a>,
    shingler: Shingler,
    signature: Signature,
    keys: Vec<u64>,
    bands: BandWriter,
    temporary: PathBuf,
    path: PathBuf,
    places: PlaceWriter,
    text: Vec<u8>,
    part: Vec<u32>,
    /// Bytes of text that are kept for the next document.
    largest: usize,
}

impl<'a> NearSpill<'a> {
    pub fn create(
        job: &Job,
        index: u32,
        near: Near,
        decoding: &'a Decoding<'a>,
        sizes: &BufferSizes,
    ) -> Result<Self> {
        let path = bands_path(job, index);
        let temporary = path.with_extension("bands.tmp");
        let buffer = sizes.hash_bytes.min(LARGEST_RECORDS);
        Ok(NearSpill {
            near,
            decoding,
            shingler: Shingler::default(),
            signature: Signature::new(near.bands * near.rows),
            keys: Vec::new(),
            bands: BandWriter::create(&temporary, near.partitions, buffer)?,
            temporary,
            path,
            places: PlaceWriter::create(&places_path(job, index))?,
            text: Vec::new(),
            part: Vec::new(),
            largest: job.plan.largest_document(),
        })
    }

    /// A document with these ids, without end tokens.
    pub fn push(&mut self, ids: impl Iterator<Item = u32>, place: Place) -> Result<()> {
        let index = self.places.push(place)?;
        self.text.clear();
        self.decoding.append(ids, &mut self.text, &mut self.part)?;
        self.decoding.finish(&mut self.text, &mut self.part)?;
        let signature = &mut self.signature;
        self.shingler.hashes(&as_text(&self.text), |hash| signature.add(hash));
        self.keys.clear();
        self.signature.keys(self.near.rows, |key| self.keys.push(key));
        if self.text.capacity() > self.largest {
            self.text = Vec::new();
        }
        self.keys.iter().try_for_each(|&key| self.bands.push(key, index))
    }

    /// Returns the number of documents.
    pub fn commit(self) -> Result<u64> {
        let documents = self.places.commit()?;
        self.bands.finish(documents)?;
        commit(&self.temporary, &self.path)?;
        Ok(documents)
    }
}
