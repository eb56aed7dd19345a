//! Near-duplicates among more documents than fit into memory (docs/design/near.md).

pub mod shingles;
pub mod signature;
