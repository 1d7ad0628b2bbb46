"""Compression, encodings, hashes and packed bytes."""

import base64
import binascii
import bz2
import gzip
import hashlib
import hmac
import io
import lzma
import struct
import tarfile
import zipfile
import zlib

TEXT = ("The quick brown fox jumps over the lazy dog. " * 40 + "Ünïcödé ☃").encode()

for name in ("md5", "sha1", "sha256", "sha3_256", "blake2b"):
    print(f"{name:9} {hashlib.new(name, TEXT).hexdigest()[:32]}")
print(hmac.new(b"key", TEXT, "sha256").hexdigest())
print(hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 1000).hex())
print(hashlib.scrypt(b"password", salt=b"salt", n=16, r=8, p=1, dklen=16).hex() if hasattr(hashlib, "scrypt") else "no scrypt")
print(f"{zlib.crc32(TEXT):08x} {zlib.adler32(TEXT):08x}")

for module in (zlib, bz2, lzma, gzip):
    assert module.decompress(module.compress(TEXT)) == TEXT, module.__name__
print("compressed and back:", len(TEXT), "bytes")

print(base64.b64encode(TEXT[:20]).decode(), base64.urlsafe_b64encode(bytes([251, 255])).decode())
print(base64.b32encode(b"hi").decode(), base64.b85encode(b"hello").decode(), TEXT[:6].hex("-"))
try:
    base64.b64decode("abc", validate=True)
except binascii.Error as error:
    print(error)

packed = struct.pack("<HIq3sf?", 1, 2**31, -5, b"abc", 1.5, True)
print(packed.hex(), struct.unpack("<HIq3sf?", packed), struct.calcsize("<HIq3sf?"))
print((1023).to_bytes(2, "big"), int.from_bytes(b"\xff\xfe", "little", signed=True), bytearray(b"abc").translate(None, b"b"))

stored = io.BytesIO()
with zipfile.ZipFile(stored, "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("a/one.txt", TEXT)
    archive.writestr("two.txt", "2")
with zipfile.ZipFile(stored) as archive:
    print([(info.filename, info.file_size) for info in archive.infolist()], archive.testzip())

stored = io.BytesIO()
with tarfile.open(fileobj=stored, mode="w:gz") as archive:
    info = tarfile.TarInfo("readme")
    info.size = 3
    archive.addfile(info, io.BytesIO(b"hey"))
stored.seek(0)
with tarfile.open(fileobj=stored) as archive:
    print(archive.getnames(), archive.extractfile("readme").read())

for encoding in ("utf-8", "utf-16-le", "latin-1", "cp1252", "shift_jis"):
    print(encoding, "Ü☃é".encode(encoding, "replace"))
