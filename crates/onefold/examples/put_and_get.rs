//! Stores a file twice in a new archive, and reads it back.
//!
//! `cargo run -p onefold --example put_and_get -- ARCHIVE FILE`

use std::fs::File;

use onefold::{ArchiveFormat, Error, Store, create_archive};

fn main() -> onefold::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), Some(file)) = (arguments.next(), arguments.next()) else {
        eprintln!("put_and_get ARCHIVE FILE");
        std::process::exit(2);
    };
    create_archive(&path, &ArchiveFormat::default())?;
    let archive = Store::open(&path)?;
    for name in ["monday", "tuesday"] {
        let mut source = File::open(&file).map_err(|e| Error::from_io(&file, e))?;
        let put = archive.put(name, &mut source)?;
        println!("{name}: {} bytes, {} of them new", put.bytes, put.new_bytes.unwrap_or_default());
    }
    let bytes = archive.get("tuesday", &mut std::io::sink())?;
    println!("read {bytes} bytes back, verified");
    archive.close()
}
