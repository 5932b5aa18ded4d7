//! A volume that somebody holds over the end of its store: nothing is lost without a word.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use onefold::{ArchiveFormat, BlockFormat, ErrorKind, Store};

#[test]
fn a_volume_that_is_held_over_a_close_refuses_changes() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    onefold::create_block(at("block"), &BlockFormat::of_bytes(64 << 20)).unwrap();
    onefold::create_archive(at("archive"), &ArchiveFormat::default()).unwrap();
    onefold::create_cluster(at("cluster")).unwrap();
    for engine in ["block", "archive", "cluster"] {
        let store = Store::open(at(engine)).unwrap();
        store.create_volume("vm1", 1 << 20).unwrap();
        let volume = store.volume("vm1").unwrap();
        volume.write_at(0, b"kept").unwrap();
        let closed = store.close();
        // A cluster store says that it could not be closed.
        if engine == "cluster" {
            assert_eq!(closed.unwrap_err().kind(), ErrorKind::Busy);
        } else {
            closed.unwrap();
        }
        let refused = volume.write_at(0, b"lost").and_then(|_| volume.flush()).unwrap_err();
        // The connection of a cluster store is gone, as that error says.
        let right = if engine == "cluster" { ErrorKind::Io } else { ErrorKind::Stopped };
        assert_eq!(refused.kind(), right, "{engine}: {refused}");
        drop(volume);
        let store = Store::open(at(engine)).unwrap();
        let mut kept = [0; 4];
        store.volume("vm1").unwrap().read_at(0, &mut kept).unwrap();
        assert_eq!(&kept, b"kept", "{engine}");
        store.close().unwrap();
    }
}
