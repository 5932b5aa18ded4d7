//! A put that tells how far it is, and one that is cancelled: both by the reader that feeds it.
//!
//! `cargo run -p onefold --example progress_and_cancellation -- ARCHIVE`

use std::io::{self, Read};

use onefold::{ArchiveFormat, Store, create_archive};

/// Reads from another reader, tells how many bytes it was so far, and may say that it is enough.
struct Watched<R> {
    inner: R,
    read: u64,
    most: u64,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.read >= self.most {
            return Err(io::Error::other("cancelled"));
        }
        let n = self.inner.read(into)?;
        if (self.read + n as u64) >> 24 > self.read >> 24 {
            println!("{} MiB read", (self.read + n as u64) >> 20);
        }
        self.read += n as u64;
        Ok(n)
    }
}

fn main() -> onefold::Result<()> {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("progress_and_cancellation ARCHIVE");
        std::process::exit(2);
    };
    create_archive(&path, &ArchiveFormat::default())?;
    let archive = Store::open(&path)?;
    let whole = || io::repeat(7).take(64 << 20);
    archive.put("whole", &mut Watched { inner: whole(), read: 0, most: u64::MAX })?;
    match archive.put("part", &mut Watched { inner: whole(), read: 0, most: 20 << 20 }) {
        Err(error) => println!("not stored: {error}"),
        Ok(_) => println!("stored after all"),
    }
    println!("{} stream is there", archive.streams()?.len());
    archive.close()
}
