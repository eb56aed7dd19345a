//! What writing a task leaves for comparing its documents: the keys of their bands, and where they are.

use super::places::{Place, PlaceWriter};
use super::{bands_path, places_path};
use crate::atomic::temporary_name;
use crate::dedup::grid::commit;
use crate::error::Result;
use crate::near::Near;
use crate::near::band_records::BandWriter;
use crate::near::shingles::Shingler;
use crate::near::signature::Signature;
use crate::prepare::{BufferSizes, Job, LARGEST_RECORDS};
use std::path::PathBuf;

pub struct NearSpill {
    near: Near,
    shingler: Shingler,
    signature: Signature,
    keys: Vec<u64>,
    bands: BandWriter,
    temporary: PathBuf,
    path: PathBuf,
    places: PlaceWriter,
}

impl NearSpill {
    pub fn create(job: &Job, index: u32, near: Near, sizes: &BufferSizes) -> Result<Self> {
        let path = bands_path(job, index);
        let temporary = temporary_name(&path);
        let buffer = sizes.hash_bytes.min(LARGEST_RECORDS);
        Ok(NearSpill {
            near,
            shingler: Shingler::default(),
            signature: Signature::new(near.bands * near.rows),
            keys: Vec::new(),
            bands: BandWriter::create(&temporary, near.partitions, buffer)?,
            temporary,
            path,
            places: PlaceWriter::create(&places_path(job, index))?,
        })
    }

    pub fn push(&mut self, text: &str, place: Place) -> Result<()> {
        let index = self.places.push(place)?;
        let signature = &mut self.signature;
        self.shingler.hashes(text, |hash| signature.add(hash));
        self.keys.clear();
        self.signature.keys(self.near.rows, |key| self.keys.push(key));
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
