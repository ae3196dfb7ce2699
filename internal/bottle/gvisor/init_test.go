package gvisor

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// TestInitIgnoresChildren: a wrong distance makes init jump into nothing when
// the first orphan ends, and the bottle dies with it.
func TestInitIgnoresChildren(t *testing.T) {
	code := initCode["amd64"]
	lea := bytes.Index(code, []byte{0x48, 0x8d, 0x35})
	if lea < 0 {
		t.Fatal("no lea rsi in init")
	}
	at := lea + 7 + int(binary.LittleEndian.Uint32(code[lea+3:]))
	want := make([]byte, 32)
	want[0] = 1 // SIG_IGN
	if at+len(want) != len(code) || !bytes.Equal(code[at:], want) {
		t.Errorf("the action at %d of %d is % x", at, len(code), code[at:])
	}
	code = initCode["arm64"]
	const adr = 8 // where adr x1 stands; the distance is in bits 5 to 23, times 4
	at = adr + int(binary.LittleEndian.Uint32(code[adr:])>>5&0x7ffff)*4
	if at+len(want) != len(code) || !bytes.Equal(code[at:], want) {
		t.Errorf("arm64: the action at %d of %d is % x", at, len(code), code[at:])
	}
}
