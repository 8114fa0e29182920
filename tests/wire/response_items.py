"""Items of the Responses protocol that several tests use."""

REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "encrypted_content": "gAAA",
}
TEXT = {"type": "output_text", "text": "Let me see.", "annotations": []}
MESSAGE = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [TEXT],
}
CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "c1",
    "name": "look",
    "arguments": '{"city": "Oslo"}',
}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "4 degrees"}
SHELL = {
    "type": "shell_call",
    "id": "sh_1",
    "call_id": "c2",
    "action": {"commands": ["ls"]},
    "status": "completed",
}
SHELL_OUTPUT = {
    "type": "shell_call_output",
    "call_id": "c2",
    "output": [
        {
            "stdout": "a.txt",
            "stderr": "warning",
            "outcome": {"type": "exit", "exit_code": 0},
        }
    ],
}
