package gvisor

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// initCode is PID 1 inside. It ignores SIGCHLD, so that the kernel reaps
// orphans, and sleeps for ever. The workload is executed beside it, so the
// sandbox, and with it the overlay, outlives the command.
//
// It is machine code because a Go program here would cost each start some 20
// ms. In assembly:
//
//	rt_sigaction(SIGCHLD, &{SIG_IGN}, NULL, 8)
//	for { pause() }
//
// Arm has no pause: ppoll(NULL, 0, NULL, NULL, 0) blocks as long.
var initCode = map[string][]byte{
	"amd64": {
		0xb8, 13, 0, 0, 0, // mov eax, 13 (rt_sigaction)
		0xbf, 17, 0, 0, 0, // mov edi, 17 (SIGCHLD)
		0x48, 0x8d, 0x35, 0x17, 0, 0, 0, // lea rsi, [rip+0x17]: the action below
		0x31, 0xd2, // xor edx, edx
		0x41, 0xba, 8, 0, 0, 0, // mov r10d, 8
		0x0f, 0x05, // syscall
		0xb8, 34, 0, 0, 0, // mov eax, 34 (pause)
		0x0f, 0x05, // syscall
		0xeb, 0xf7, // jmp back to mov eax, 34
		0x90, 0x90, 0x90, 0x90, // padding to 8
		1, 0, 0, 0, 0, 0, 0, 0, // sa_handler = SIG_IGN
		0, 0, 0, 0, 0, 0, 0, 0, // sa_flags
		0, 0, 0, 0, 0, 0, 0, 0, // sa_restorer
		0, 0, 0, 0, 0, 0, 0, 0, // sa_mask
	},
	"arm64": {
		0xc8, 0x10, 0x80, 0xd2, // mov x8, 134 (rt_sigaction)
		0x20, 0x02, 0x80, 0xd2, // mov x0, 17 (SIGCHLD)
		0x81, 0x01, 0x00, 0x10, // adr x1, 48 bytes on: the action below
		0x02, 0x00, 0x80, 0xd2, // mov x2, 0
		0x03, 0x01, 0x80, 0xd2, // mov x3, 8
		0x01, 0x00, 0x00, 0xd4, // svc 0
		0x28, 0x09, 0x80, 0xd2, // mov x8, 73 (ppoll)
		0x00, 0x00, 0x80, 0xd2, // mov x0, 0
		0x01, 0x00, 0x80, 0xd2, // mov x1, 0
		0x02, 0x00, 0x80, 0xd2, // mov x2, 0
		0x03, 0x00, 0x80, 0xd2, // mov x3, 0
		0x04, 0x00, 0x80, 0xd2, // mov x4, 0
		0x01, 0x00, 0x00, 0xd4, // svc 0
		0xf9, 0xff, 0xff, 0x17, // b back to mov x8, 73
		1, 0, 0, 0, 0, 0, 0, 0, // sa_handler = SIG_IGN
		0, 0, 0, 0, 0, 0, 0, 0, // sa_flags
		0, 0, 0, 0, 0, 0, 0, 0, // sa_restorer
		0, 0, 0, 0, 0, 0, 0, 0, // sa_mask
	},
}

// elfMachine holds the numbers that ELF gives to architectures.
var elfMachine = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

const elfBase = 0x400000

// initELF wraps the code in the smallest static ELF file that Linux loads: one
// header, one segment.
func initELF() ([]byte, error) {
	code, ok := initCode[runtime.GOARCH]
	if !ok {
		return nil, fmt.Errorf("no init for %s", runtime.GOARCH)
	}
	const ehsize, phsize = 64, 56
	le := func(n uint64, size int) []byte {
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(n >> (8 * i))
		}
		return b
	}
	total := uint64(ehsize + phsize + len(code))
	var b []byte
	put := func(n uint64, size int) { b = append(b, le(n, size)...) }
	b = append(b, 0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	put(2, 2) // ET_EXEC
	put(uint64(elfMachine[runtime.GOARCH]), 2)
	put(1, 4)                     // version
	put(elfBase+ehsize+phsize, 8) // entry
	put(ehsize, 8)                // program headers
	put(0, 8)                     // section headers
	put(0, 4)                     // flags
	put(ehsize, 2)                //
	put(phsize, 2)                //
	put(1, 2)                     // one program header
	put(64, 2)                    // section header size
	put(0, 2)                     //
	put(0, 2)                     //
	put(1, 4)                     // PT_LOAD
	put(5, 4)                     // read, execute
	put(0, 8)                     // offset
	put(elfBase, 8)               // virtual
	put(elfBase, 8)               // physical
	put(total, 8)                 // in file
	put(total, 8)                 // in memory
	put(0x1000, 8)                // alignment
	return append(b, code...), nil
}

func makeInit(root string) error {
	b, err := initELF()
	if err != nil {
		return err
	}
	path := filepath.Join(root, initPath)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o555)
}
