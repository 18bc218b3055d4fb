"""bitsandbytes' CUDA rule of AdamW8bit in torch: its kernel for CPUs decays first, keeps no signs and quantises more coarsely."""

import torch
from bitsandbytes.functional import create_dynamic_map

BLOCK, MIN_CODED = 256, 4096


class AdamW8bitPort:
    """kOptimizerStatic8bit2StateBlockwise of one flat tensor, and kOptimizer32bit2State for small ones and embeddings."""

    def __init__(self, values, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, is_embedding=False):
        self.p, self.lr, self.eps, self.weight_decay = values.clone(), lr, eps, weight_decay
        self.beta1, self.beta2 = (torch.tensor(beta) for beta in betas)  # fp32
        self.is_coded = values.numel() >= MIN_CODED and not is_embedding
        self.m, self.v = torch.zeros_like(values), torch.zeros_like(values)
        self.maps = {True: create_dynamic_map(True), False: create_dynamic_map(False)}
        self.num_steps = 0

    def step(self, grads):
        self.num_steps += 1
        correction1 = 1 - self.beta1.double() ** self.num_steps
        correction2 = torch.sqrt(1 - self.beta2.double() ** self.num_steps)
        if self.is_coded and self.num_steps > 1:
            self.m, self.v = self.decoded(*self.m_state, True), self.decoded(*self.v_state, False)
        self.v = self.v * self.beta2 + (1 - self.beta2) * grads * grads
        self.m = self.m * self.beta1 + (1 - self.beta1) * grads
        step_size = (-self.lr * correction2 / correction1).float()
        self.p = self.p + step_size * (self.m / (torch.sqrt(self.v) + (correction2 * self.eps).float()))
        self.p = self.p * torch.tensor(1 - self.lr * self.weight_decay)
        if self.is_coded:
            self.m_state, self.v_state = self.encoded(self.m, True), self.encoded(self.v, False)
            self.num_zeroed = ((self.v > 0) & (self.v_state[0][:len(self.v)] == 0)).sum().item()

    def encoded(self, values, is_signed):
        table, blocks = self.maps[is_signed], torch.nn.functional.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK)
        scales = blocks.abs().amax(1)
        x = torch.where(scales[:, None] > 0, blocks / scales[:, None], 0.0)  # the kernel divides 0 by 0; any code is 0 then
        upper = torch.searchsorted(table, x.contiguous()).clamp(1, 255)
        middle = (table[upper - 1] + table[upper]) * 0.5
        codes = torch.where((x > middle) | ((x == middle) & (upper % 2 == 0)), upper, upper - 1)
        if is_signed:
            loses_sign = (torch.signbit(table[codes]) != torch.signbit(blocks)) & (blocks != 0)
            codes = torch.where(loses_sign, codes + torch.where(blocks > 0, 1, -1), codes)
        return codes.flatten(), scales

    def decoded(self, codes, scales, is_signed):
        return (self.maps[is_signed][codes].view(-1, BLOCK) * scales[:, None]).flatten()[:len(self.p)]


class AdamW8bit(torch.optim.Optimizer):
    """The rule for the parameters of a model; `embeddings` are those with fp32 moments. Each step appends to `zeroed` the share
    of coded second moments that were above 0 and have the code of 0."""

    def __init__(self, groups, lr, embeddings, zeroed):
        super().__init__(groups, dict(lr=lr, weight_decay=0.0))
        self.ports = {p: AdamW8bitPort(p.detach().flatten(), lr, weight_decay=group["weight_decay"],
                                       is_embedding=any(p is e for e in embeddings))
                      for group in self.param_groups for p in group["params"]}
        self.zeroed = zeroed

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                port = self.ports[p]
                port.lr = group["lr"]
                port.step(p.grad.flatten())
                p.copy_(port.p.view_as(p))
        coded = [port for port in self.ports.values() if port.is_coded]
        self.zeroed.append(sum(port.num_zeroed for port in coded) / sum(port.p.numel() for port in coded))
