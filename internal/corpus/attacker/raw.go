package attacker

import (
	"debug/elf"
	"encoding/binary"
	"runtime"
	"unsafe"
)

// A static program of a hundred bytes that opens a file, reads 256 bytes of it
// and writes them to its standard output, in each of the conventions that a
// processor of this kind has for system calls. No compiler that is here makes
// all of them.

const (
	rawBase = 0x400000
	rawHead = 64 + 56
	rawPath = rawBase + 0x200 // where the path stands
	rawBuf  = rawBase + 0x1800
)

type convention struct {
	name string
	code []byte
}

func join(parts ...[]byte) (out []byte) {
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func readerELF(code []byte, path string) []byte { return elfOf(code, append([]byte(path), 0)) }

// elfOf wraps code in the smallest file that Linux executes, with data at rawPath.
func elfOf(code, data []byte) []byte {
	le := binary.LittleEndian
	b := append([]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, make([]byte, 9)...)
	b = le.AppendUint16(b, 2) // ET_EXEC
	b = le.AppendUint16(b, uint16(map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]))
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, rawBase+rawHead) // entry
	b = le.AppendUint64(b, 64)              // program headers
	b = le.AppendUint64(b, 0)
	b = le.AppendUint32(b, 0)
	for _, v := range []uint16{64, 56, 1, 64, 0, 0} {
		b = le.AppendUint16(b, v)
	}
	size := uint64(rawPath - rawBase + len(data))
	b = le.AppendUint32(b, 1) // PT_LOAD
	b = le.AppendUint32(b, 7) // read, write, execute
	for _, v := range []uint64{0, rawBase, rawBase, size, 0x3000, 0x1000} {
		b = le.AppendUint64(b, v)
	}
	b = append(b, code...)
	b = append(b, make([]byte, rawPath-rawBase-len(b))...)
	return append(b, data...)
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
