//! Serves the volumes of a store, of whichever engine, over NBD until standard input ends.
//!
//! `cargo run -p onefold --example serve_a_store -- STORE SOCKET`

use std::io::Read;

fn main() -> onefold::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), Some(socket)) = (arguments.next(), arguments.next()) else {
        eprintln!("serve_a_store STORE SOCKET");
        std::process::exit(2);
    };
    let store = onefold::Store::open(&path)?;
    let server = store.serve(&socket)?;
    for volume in store.volumes()? {
        println!("nbd+unix:///{}?socket={socket}  {} bytes", volume.name, volume.size);
    }
    // The store is at work in threads of its own meanwhile.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    server.stop()?;
    store.close()
}
