//! Hostile bytes for everything of Onefold that reads bytes from others.
//!
//! A target is a function of bytes, which returns when all is well and panics when it is not: a
//! decoder panicked, accepted what it would not write itself, or a store gave data that nobody
//! wrote. The same functions are called by `cargo fuzz` (see `fuzz/`) and by the runner here
//! ([`runner`]), which needs nothing but the standard library and mutates by a seed.
//!
//! *Invariant:* nothing of the product depends on this crate.

mod access;
mod archive;
mod bucket;
mod certificate;
mod cluster;
mod connection;
mod control;
mod corrupt;
mod decoders;
mod folder;
mod http;
mod image;
mod keys;
mod memory;
mod mutator;
mod nbd;
mod objects;
pub mod reach;
pub mod runner;
mod sealed;
mod secured;
mod stream;
mod tools;
mod trace;
mod vhost;

pub use access::access_file;
pub use archive::{
    archive,
    decoders::{
        container, event, label, leaf, listing, log, node_label, recipe, record, snapshot,
        tree_node,
    },
    nodes::nodes,
    parts::{counts, index, maps, tables},
};
pub use bucket::bucket;
pub use certificate::certificate;
pub use cluster::cluster;
pub use connection::connection;
pub use control::control;
pub use decoders::{carrier, claim, map_page, superblock, zone_list};
pub use folder::folder;
pub use http::http_head;
pub use image::{image, repaired_image};
pub use keys::key_area;
pub use nbd::nbd_session;
pub use objects::objects;
pub use sealed::sealed_block;
pub use secured::nbd_secured;
pub use stream::stream;
pub use tools::tools;
pub use trace::trace;
pub use vhost::{vhost_messages, vhost_ring};

/// A target: its name, its body, and examples to begin with.
pub struct Target {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its body.
    pub body: fn(&[u8]),
    /// Good examples, to be mutated.
    pub examples: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: [Target; 42] = [
    Target { name: "superblock", body: superblock, examples: decoders::superblock_examples },
    Target { name: "zone_list", body: zone_list, examples: decoders::zone_list_examples },
    Target { name: "claim", body: claim, examples: decoders::claim_examples },
    Target { name: "key_area", body: key_area, examples: keys::examples },
    Target { name: "sealed_block", body: sealed_block, examples: sealed::examples },
    Target { name: "carrier", body: carrier, examples: decoders::carrier_examples },
    Target { name: "map_page", body: map_page, examples: decoders::page_examples },
    Target { name: "image", body: image, examples: corrupt::examples },
    Target { name: "repaired_image", body: repaired_image, examples: corrupt::examples },
    Target { name: "tools", body: tools, examples: corrupt::examples },
    Target { name: "stream", body: stream, examples: stream::examples },
    Target { name: "trace", body: trace, examples: trace::examples },
    Target { name: "nbd_session", body: nbd_session, examples: nbd::examples },
    Target { name: "vhost_ring", body: vhost_ring, examples: vhost::examples },
    Target { name: "vhost_messages", body: vhost_messages, examples: vhost::conversations },
    Target { name: "nbd_secured", body: nbd_secured, examples: secured::examples },
    Target { name: "certificate", body: certificate, examples: certificate::examples },
    Target { name: "access_file", body: access_file, examples: access::examples },
    Target { name: "control", body: control, examples: control::examples },
    Target { name: "connection", body: connection, examples: connection::examples },
    Target { name: "http_head", body: http_head, examples: http::examples },
    Target { name: "archive", body: archive, examples: archive::examples },
    Target { name: "nodes", body: nodes, examples: archive::nodes::examples },
    Target { name: "index", body: index, examples: archive::parts::examples },
    Target { name: "counts", body: counts, examples: archive::parts::examples },
    Target { name: "maps", body: maps, examples: archive::parts::examples },
    Target { name: "tables", body: tables, examples: archive::parts::examples },
    Target { name: "leaf", body: leaf, examples: archive::decoders::leaf_examples },
    Target { name: "label", body: label, examples: archive::decoders::label_examples },
    Target {
        name: "node_label",
        body: node_label,
        examples: archive::decoders::node_label_examples,
    },
    Target { name: "log", body: log, examples: archive::decoders::log_examples },
    Target { name: "record", body: record, examples: archive::decoders::record_examples },
    Target { name: "snapshot", body: snapshot, examples: archive::decoders::snapshot_examples },
    Target { name: "container", body: container, examples: archive::decoders::container_examples },
    Target { name: "recipe", body: recipe, examples: archive::decoders::recipe_examples },
    Target { name: "event", body: event, examples: archive::decoders::event_examples },
    Target { name: "tree_node", body: tree_node, examples: archive::decoders::tree_node_examples },
    Target { name: "listing", body: listing, examples: archive::decoders::listing_examples },
    Target { name: "cluster", body: cluster, examples: cluster::examples },
    Target { name: "objects", body: objects, examples: objects::examples },
    Target { name: "folder", body: folder, examples: folder::examples },
    Target { name: "bucket", body: bucket, examples: bucket::examples },
];
