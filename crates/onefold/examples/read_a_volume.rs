//! Copies what is written of a volume to a sparse file.
//!
//! `cargo run -p onefold --example read_a_volume -- STORE VOLUME FILE`

use std::{fs::File, os::unix::fs::FileExt};

use onefold::{Error, ExtentKind, Store, Volume};

/// Bytes that are copied at once.
const PIECE: u64 = 1 << 20;

fn main() -> onefold::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), Some(name), Some(file)) =
        (arguments.next(), arguments.next(), arguments.next())
    else {
        eprintln!("read_a_volume STORE VOLUME FILE");
        std::process::exit(2);
    };
    let store = Store::open(&path)?;
    let volume = store.volume(&name)?;
    let out = File::create_new(&file).map_err(|e| Error::from_io(&file, e))?;
    out.set_len(volume.size()).map_err(|e| Error::from_io(&file, e))?;
    let copied = copy(&volume, &out).map_err(|error| error.context(&file))?;
    println!("{copied} of {} bytes are written", volume.size());
    drop(volume);
    store.close()
}

fn copy(volume: &Volume, out: &File) -> onefold::Result<u64> {
    let (mut at, mut copied, mut buffer) = (0, 0, Vec::new());
    while at < volume.size() {
        for extent in volume.extents(at, volume.size() - at)? {
            let end = at + extent.bytes;
            while extent.kind == ExtentKind::Data && at < end {
                let bytes = PIECE.min(end - at);
                buffer.resize(bytes as usize, 0);
                volume.read_at(at, &mut buffer)?;
                out.write_all_at(&buffer, at).map_err(|e| Error::from_io("writing", e))?;
                (at, copied) = (at + bytes, copied + bytes);
            }
            at = end;
        }
    }
    Ok(copied)
}
