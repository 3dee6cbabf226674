// The codecs that kafkajs leaves to others. Compressed shapes are those of Kafka: raw or xerial snappy, lz4 and zstd frames.
import { init, compress as zstdCompress } from "@bokuweb/zstd-wasm";
import { decompress as zstdDecompress } from "fzstd";
import kafkajs from "kafkajs";
import { compressFrameSync, decompressFrameSync } from "lz4-napi";
import SnappyJS from "snappyjs";

const XERIAL = Buffer.from([0x82, 0x53, 0x4e, 0x41, 0x50, 0x50, 0x59, 0x00]);

function snappyDecompress(buffer) {
  if (!buffer.subarray(0, 8).equals(XERIAL)) return Buffer.from(SnappyJS.uncompress(buffer));
  const blocks = [];
  for (let at = 16; at < buffer.length; ) {
    const size = buffer.readInt32BE(at);
    blocks.push(Buffer.from(SnappyJS.uncompress(buffer.subarray(at + 4, at + 4 + size))));
    at += 4 + size;
  }
  return Buffer.concat(blocks);
}

const codec = (compress, decompress) => () => ({
  compress: async (encoder) => Buffer.from(compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(decompress(buffer)),
});

export async function install() {
  await init();
  const { CompressionCodecs, CompressionTypes } = kafkajs;
  CompressionCodecs[CompressionTypes.Snappy] = codec((data) => SnappyJS.compress(data), snappyDecompress);
  CompressionCodecs[CompressionTypes.LZ4] = codec(compressFrameSync, decompressFrameSync);
  CompressionCodecs[CompressionTypes.ZSTD] = codec((data) => zstdCompress(data, 3), (data) => zstdDecompress(data));
}
