//! The file of `redb` for its owner, who has locked it.

use std::{fs::File, io, os::unix::fs::FileExt, sync::Arc};

use redb::StorageBackend;

use super::trees::{LONGEST, Trees};
use crate::file_disk::standing::Standing;

#[derive(Debug)]
pub(super) struct Own {
    file: File,
    /// The checked shape of the trees, unless the file is new.
    trees: Option<Arc<Trees>>,
    /// Knows how long the file is, unless it is new.
    standing: Option<Arc<Standing>>,
}

impl Own {
    /// A new file.
    pub(super) fn new(file: File) -> Own {
        Own { file, trees: None, standing: None }
    }

    /// One that may have been written by somebody else.
    pub(super) fn at(file: File, trees: Arc<Trees>, standing: Arc<Standing>) -> Own {
        Own { file, trees: Some(trees), standing: Some(standing) }
    }
}

impl StorageBackend for Own {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        if len > LONGEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, offset)?;
        if let Some(trees) = &self.trees {
            let read = |at, into: &mut [u8]| self.file.read_exact_at(into, at);
            trees.read(offset, &bytes, self.len()?, &read)?;
        }
        Ok(bytes)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)?;
        if let Some(standing) = &self.standing {
            standing.becomes(len);
        }
        Ok(())
    }

    fn sync_data(&self, _eventual: bool) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if let Some(trees) = &self.trees {
            trees.write(offset, data.len());
        }
        self.file.write_all_at(data, offset)
    }
}
