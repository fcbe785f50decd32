//! Hash functions whose results are the same in every process, on every platform and in every release.

use twox_hash::XxHash64;

/// xxHash64 with seed 0: the default for names and keys.
pub(crate) fn xxh64(bytes: &[u8]) -> u64 {
    XxHash64::oneshot(0, bytes)
}

pub(crate) fn xxh64_seeded(seed: u64, bytes: &[u8]) -> u64 {
    XxHash64::oneshot(seed, bytes)
}

/// The CRC-32 of zlib.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// Continues a CRC-32 with the bytes that follow.
pub(crate) fn crc32_continued(crc: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(crc);
    hasher.update(bytes);
    hasher.finalize()
}

/// MurmurHash2, 64-bit version A (Austin Appleby), with the seed that libstdc++ uses.
pub(crate) fn murmur2(bytes: &[u8]) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    const SEED: u64 = 0xc70f_6907;
    let scramble = |k: u64| {
        let k = k.wrapping_mul(M);
        (k ^ (k >> 47)).wrapping_mul(M)
    };
    let mut hash = SEED ^ (bytes.len() as u64).wrapping_mul(M);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        hash = (hash ^ scramble(u64::from_le_bytes(*word))).wrapping_mul(M);
    }
    if !rest.is_empty() {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 47)).wrapping_mul(M);
    hash ^ (hash >> 47)
}

/// SDBM, as HAProxy computes it.
pub(crate) fn sdbm(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |hash: u32, &byte| {
        let shifted = (hash << 6).wrapping_add(hash << 16).wrapping_sub(hash);
        shifted.wrapping_add(u32::from(byte))
    })
}

/// HAProxy's full avalanche: Bob Jenkins' six shifts, then a multiplication.
pub(crate) const fn avalanche(value: u32) -> u32 {
    let a = value;
    let a = a.wrapping_add(0x7ed5_5d16).wrapping_add(a << 12);
    let a = (a ^ 0xc761_c23c) ^ (a >> 19);
    let a = a.wrapping_add(0x1656_67b1).wrapping_add(a << 5);
    let a = a.wrapping_add(0xd3a2_646c) ^ (a << 9);
    let a = a.wrapping_add(0xfd70_46c5).wrapping_add(a << 3);
    let a = (a ^ 0xb55a_4f09) ^ (a >> 16);
    a.wrapping_mul(3_221_225_473)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_hash_functions() {
        let text = include_str!("../../tests/golden/hash_vectors.json");
        let file: serde_json::Value = serde_json::from_str(text).unwrap();
        let number =
            |value: &serde_json::Value| u64::from_str_radix(value.as_str().unwrap(), 16).unwrap();
        let bytes = |vector: &serde_json::Value| match vector["text"].as_str() {
            Some(text) => text.as_bytes().to_vec(),
            None => {
                let hex = vector["hex"].as_str().unwrap();
                let byte = |i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap();
                (0..hex.len()).step_by(2).map(byte).collect()
            }
        };
        let vectors = file["vectors"].as_array().unwrap();
        assert_eq!(vectors.len(), 90);
        for vector in vectors {
            let bytes = bytes(vector);
            assert_eq!(xxh64(&bytes), number(&vector["xxh64"]));
            assert_eq!(xxh64_seeded(1, &bytes), number(&vector["xxh64_seed1"]));
            assert_eq!(
                murmur2(&bytes),
                number(&vector["murmur2_64a_seed_c70f6907"])
            );
            assert_eq!(u64::from(crc32(&bytes)), number(&vector["crc32"]));
            let (a, b) = bytes.split_at(bytes.len() / 2);
            assert_eq!(crc32_continued(crc32(a), b), crc32(&bytes));
        }
    }
}
